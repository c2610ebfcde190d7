// SPDX-License-Identifier: Apache-2.0
//
// Mutex and CondVar under threads. The annotations themselves are tested by the clang build, which
// refuses code that touches a guarded member without its lock.
#include "base/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace tencache {
namespace {

TEST(MutexTest, ExcludesOtherThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20000;
  Mutex mutex;
  int64_t total = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&mutex, &total] {
        for (int round = 0; round < kRounds; ++round) {
          MutexLock lock(mutex);
          total = total + 1;
        }
      });
    }
  }
  EXPECT_EQ(total, int64_t{kThreads} * kRounds);
}

bool can_take(Mutex& mutex) {
  if (!mutex.try_lock()) return false;
  mutex.unlock();
  return true;
}

TEST(MutexTest, TryLockFailsWhileAnotherThreadHoldsIt) {
  Mutex mutex;
  bool taken = true;
  {
    MutexLock lock(mutex);
    std::jthread([&mutex, &taken] { taken = can_take(mutex); }).join();
    EXPECT_FALSE(taken);
  }
  EXPECT_TRUE(can_take(mutex));
}

/// A queue of one place: every value must arrive exactly once and in order.
class Mailbox {
 public:
  void put(int value) {
    MutexLock lock(mutex_);
    while (full_) emptied_.wait(mutex_);
    value_ = value;
    full_ = true;
    filled_.notify_one();
  }
  int take() {
    MutexLock lock(mutex_);
    while (!full_) filled_.wait(mutex_);
    full_ = false;
    emptied_.notify_one();
    return value_;
  }

 private:
  Mutex mutex_;
  CondVar filled_;
  CondVar emptied_;
  int value_ TENCACHE_GUARDED_BY(mutex_) = 0;
  bool full_ TENCACHE_GUARDED_BY(mutex_) = false;
};

TEST(CondVarTest, HandsValuesFromThreadToThread) {
  constexpr int kValues = 5000;
  Mailbox mailbox;
  std::vector<int> received;
  std::jthread taker([&] {
    for (int i = 0; i < kValues; ++i) received.push_back(mailbox.take());
  });
  for (int i = 0; i < kValues; ++i) mailbox.put(i);
  taker.join();
  ASSERT_EQ(received.size(), static_cast<size_t>(kValues));
  for (int i = 0; i < kValues; ++i) ASSERT_EQ(received[static_cast<size_t>(i)], i);
}

TEST(CondVarTest, WaitReleasesAndTakesTheMutexAgain) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  bool held_after_wait = false;
  std::jthread waiter([&] {
    mutex.lock();
    while (!ready) changed.wait(mutex);
    std::jthread([&] {
      const bool taken = mutex.try_lock();
      held_after_wait = !taken;
      if (taken) mutex.unlock();
    }).join();
    mutex.unlock();
  });
  {
    MutexLock lock(mutex);
    ready = true;
    changed.notify_all();
  }
  waiter.join();
  EXPECT_TRUE(held_after_wait);
}

}  // namespace
}  // namespace tencache
