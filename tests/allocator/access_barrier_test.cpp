// SPDX-License-Identifier: Apache-2.0
//
// The access barrier over a range whose pages move away and come back: a thread that touches it, in
// user code or through the kernel, waits and then sees the right bytes. The tests are skipped where
// the kernel does not allow userfaultfd.
#include "platform/access_barrier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/racy_access.h"
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
    Result<std::unique_ptr<AddressArena>> arena =
        AddressArena::reserve(64 * kGranuleBytes, 64 * kGranuleBytes);
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

// ---- Write-protection, which needs no privilege ---------------------------------------------

class WriteProtectionTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<AccessBarrier>> barrier =
        GetParam() ? AccessBarrier::open() : AccessBarrier::open_unprivileged();
    if (!barrier.is_ok()) GTEST_SKIP() << barrier.status().message();
    barrier_ = std::move(barrier).value();
    EXPECT_EQ(barrier_->stops_everybody(), GetParam());
    Result<std::unique_ptr<AddressArena>> arena =
        AddressArena::reserve(64 * kGranuleBytes, 64 * kGranuleBytes);
    ASSERT_TRUE(arena.is_ok());
    arena_ = std::move(arena).value();
    range_ = arena_->base();
    ASSERT_TRUE(arena_->commit(range_, kBytes).is_ok());
    // The second half stays untouched: nothing stands behind it yet.
    memset(range_, 5, kBytes / 2);
  }
  /// A thread that blocks every signal writes to the range; it has done so when `done_` is true.
  std::jthread write_to(char* address) {
    return std::jthread([this, address] {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, nullptr);
      *static_cast<volatile char*>(address) = 6;
      done_.store(true);
    });
  }

  std::unique_ptr<AccessBarrier> barrier_;
  std::unique_ptr<AddressArena> arena_;
  char* range_ = nullptr;
  std::atomic<bool> done_{false};
};
INSTANTIATE_TEST_SUITE_P(Kind, WriteProtectionTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "Privileged" : "Unprivileged";
});

TEST_P(WriteProtectionTest, WriterWaitsAndReaderDoesNot) {
  for (const uint64_t offset : {kPageBytes, kBytes - kPageBytes}) {
    done_.store(false);
    ASSERT_TRUE(barrier_->protect(range_, kBytes).is_ok());
    std::jthread writer = write_to(range_ + offset);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(done_.load()) << offset;
    const char before = offset < kBytes / 2 ? 5 : 0;
    {
      const RacyReads racy;  // the writer has not written yet
      EXPECT_EQ(*static_cast<volatile char*>(range_ + offset), before);
      EXPECT_TRUE(is_readable(range_ + offset));
    }
    barrier_->unprotect(range_, kBytes);
    writer.join();
    EXPECT_EQ(range_[offset], 6);
    EXPECT_TRUE(overwrite_with_zero(range_ + offset));
  }
}

TEST_P(WriteProtectionTest, MappingAnewEndsIt) {
  ASSERT_TRUE(barrier_->protect(range_, kBytes).is_ok());
  std::jthread writer = write_to(range_ + kPageBytes);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(done_.load());
  ASSERT_NE(
      mmap(range_, kBytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
      MAP_FAILED);
  barrier_->wake(range_, kBytes);
  writer.join();
  EXPECT_EQ(range_[0], 0);
  EXPECT_EQ(range_[kPageBytes], 6);
}

TEST_P(WriteProtectionTest, FilesAreRefused) {
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  void* const mapped = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_FALSE(barrier_->protect(static_cast<char*>(mapped), kPageBytes).is_ok());
  *static_cast<volatile char*>(mapped) = 1;
  munmap(mapped, kPageBytes);
  close(file);
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
