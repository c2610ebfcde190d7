// SPDX-License-Identifier: Apache-2.0
//
// Whether any thread blocks a signal: the thread is found whichever it is, and no longer counts
// once it has ended.
#include "platform/blocked_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/service_thread.h"

namespace tencache {
namespace {

/// Runs `check` while another thread blocks what `mask` holds.
template <typename Check>
void while_blocked(const sigset_t& mask, Check check) {
  std::thread([&] {
    pthread_sigmask(SIG_BLOCK, &mask, nullptr);
    std::thread(check).join();  // a thread inherits the mask
  }).join();
}

TEST(BlockedSignalsTest, ThreadThatBlocksIsFound) {
  EXPECT_FALSE(is_blocked_by_any_thread(SIGSEGV));
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGSEGV);
  while_blocked(mask, [] {
    EXPECT_TRUE(is_blocked_by_any_thread(SIGSEGV));
    EXPECT_FALSE(is_blocked_by_any_thread(SIGUSR1));
  });
  EXPECT_FALSE(is_blocked_by_any_thread(SIGSEGV));
}

TEST(BlockedSignalsTest, LastSignalIsFound) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGRTMAX);
  while_blocked(mask, [] {
    EXPECT_TRUE(is_blocked_by_any_thread(SIGRTMAX));
    EXPECT_FALSE(is_blocked_by_any_thread(SIGHUP));
  });
}

// The C library blocks every signal while a thread begins or ends.
TEST(BlockedSignalsTest, ThreadsThatComeAndGoDoNotCount) {
  std::atomic<bool> is_over{false};
  std::thread coming([&] {
    while (!is_over.load()) std::thread([] {}).join();
  });
  for (int look = 0; look < 2000; ++look) EXPECT_FALSE(is_blocked_by_any_thread(SIGSEGV)) << look;
  is_over.store(true);
  coming.join();
}

// A thread that calls the kernel directly can block the C library's internal signals, too.
TEST(BlockedSignalsTest, ThreadThatBlocksEverythingIsFound) {
  std::thread([] {
    const uint64_t all = ~uint64_t{0};
    ASSERT_EQ(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, nullptr, sizeof all), 0);
    EXPECT_TRUE(is_blocked_by_any_thread(SIGSEGV));
  }).join();
}

TEST(BlockedSignalsTest, OurOwnThreadsBlockNoFault) {
  std::thread service = start_service_thread("tencache-test", [] {
    EXPECT_FALSE(is_blocked_by_any_thread(SIGSEGV));
    EXPECT_FALSE(is_blocked_by_any_thread(SIGBUS));
    EXPECT_TRUE(is_blocked_by_any_thread(SIGUSR1));
  });
  service.join();
}

}  // namespace
}  // namespace tencache
