// SPDX-License-Identifier: Apache-2.0
//
// The access barrier over a range whose pages move away and come back: a thread that touches it, in
// user code or through the kernel, waits and then sees the right bytes. Skipped where the kernel
// does not allow userfaultfd.
#include "platform/access_barrier.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "platform/address_arena.h"
#include "support/accessible.h"
#include "support/child_process.h"
#include "support/eventually.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 3 * kGranuleBytes / 2;

class AccessBarrierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<AccessBarrier>> barrier = AccessBarrier::open();
    if (!barrier.is_ok()) GTEST_SKIP() << barrier.status().message();
    barrier_ = std::move(barrier).value();
    Result<std::unique_ptr<AddressArena>> arena = AddressArena::reserve(64 * kGranuleBytes);
    ASSERT_TRUE(arena.is_ok());
    arena_ = std::move(arena).value();
    range_ = arena_->base();
    elsewhere_ = arena_->base() + 8 * kGranuleBytes;
    ASSERT_TRUE(arena_->commit(range_, kBytes).is_ok());
    ASSERT_TRUE(arena_->commit(elsewhere_, kBytes).is_ok());
    memset(range_, 5, kBytes);
  }

  void move_away() {
    ASSERT_TRUE(barrier_->close(range_, kBytes).is_ok());
    ASSERT_TRUE(arena_->move_frames(range_, elsewhere_, kBytes).is_ok());
  }

  std::unique_ptr<AccessBarrier> barrier_;
  std::unique_ptr<AddressArena> arena_;
  char* range_ = nullptr;
  char* elsewhere_ = nullptr;
};

/// Three threads that each touch the range in their own way, and their results.
struct Visitors {
  explicit Visitors(char* range) {
    threads.emplace_back([this, range] {
      read = *static_cast<volatile char*>(range + 1);
      ++done;
    });
    threads.emplace_back([this, range] {
      *static_cast<volatile char*>(range + kPageBytes) = 6;
      ++done;
    });
    threads.emplace_back([this, range] {
      was_readable = is_readable(range + kBytes - 1);
      ++done;
    });
  }

  char read = 0;
  bool was_readable = false;
  std::atomic<int> done{0};
  std::vector<std::jthread> threads;
};

TEST_F(AccessBarrierTest, ProgramAndKernelWaitUntilThePagesAreBack) {
  move_away();
  EXPECT_EQ(elsewhere_[0], 5);
  Visitors visitors(range_);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(visitors.done.load(), 0);
  ASSERT_TRUE(arena_->move_frames(elsewhere_, range_, kBytes).is_ok());
  barrier_->wake(range_, kBytes);
  EXPECT_TRUE(eventually([&] { return visitors.done.load() == 3; }));
  visitors.threads.clear();
  EXPECT_EQ(visitors.read, 5);
  EXPECT_TRUE(visitors.was_readable);
  EXPECT_EQ(range_[kPageBytes], 6);
}

TEST_F(AccessBarrierTest, WhatIsCopiedBackIsThere) {
  move_away();
  Visitors visitors(range_);
  ASSERT_TRUE(barrier_->copy_back(elsewhere_, range_, kBytes).is_ok());
  barrier_->reopen(range_, kBytes);
  EXPECT_TRUE(eventually([&] { return visitors.done.load() == 3; }));
  visitors.threads.clear();
  EXPECT_EQ(visitors.read, 5);
  EXPECT_EQ(range_[kPageBytes], 6);
  EXPECT_EQ(range_[kBytes - 1], 5);
}

TEST_F(AccessBarrierTest, ReopenedRangeIsOrdinaryMemory) {
  move_away();
  barrier_->reopen(range_, kBytes);
  EXPECT_EQ(range_[0], 0);
  EXPECT_TRUE(is_readable(range_ + kBytes - 1));
}

TEST_F(AccessBarrierTest, RangeThatIsNoMemoryIsAnError) {
  const Status status = barrier_->close(nullptr, kBytes);
  EXPECT_FALSE(status.is_ok());
  EXPECT_NE(status.message().find("registering memory"), std::string::npos) << status.message();
}

TEST(AccessBarrierRefusedTest, SaysWhatWouldAllowIt) {
  const int outcome = run_in_child([] {
    constexpr uint32_t kNewDescriptor = 0xAA00;  // USERFAULTFD_IOC_NEW
    if (!deny_syscall(SYS_userfaultfd, EPERM)) _exit(kSkipped);
    if (!deny_syscall_when(SYS_ioctl, EPERM, 1, kNewDescriptor)) _exit(kSkipped);
    const Result<std::unique_ptr<AccessBarrier>> barrier = AccessBarrier::open();
    ASSERT_FALSE(barrier.is_ok());
    EXPECT_NE(barrier.status().message().find("vm.unprivileged_userfaultfd=1"), std::string::npos)
        << barrier.status().message();
  });
  if (outcome == kSkipped) GTEST_SKIP() << "the kernel allows no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

}  // namespace
}  // namespace tencache
