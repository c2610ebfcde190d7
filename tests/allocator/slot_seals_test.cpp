// SPDX-License-Identifier: Apache-2.0
//
// Evictions that keep the pages (engine/slot_seals.cpp): where they are then, what brings them
// back, which extents leave by the other window, and that nobody notices. Skipped where the kernel
// does not allow userfaultfd.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "backend/access_barrier.h"
#include "support/accessible.h"
#include "support/child_process.h"
#include "support/faulty_channel.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

class KeptPagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!AccessBarrier::open().is_ok()) GTEST_SKIP() << "userfaultfd is not allowed here";
  }
  static void keep_pages(CpuEngineConfig& config) { config.userfaultfd = Choice::kOn; }
  /// And calls `hook` once, when the first piece of an eviction has been written.
  static TestEngine::Adjust keep_pages_with(const std::function<void()>& hook) {
    auto plan = std::make_shared<FaultPlan>();
    plan->add({.first = 2, .count = 1, .kind = FaultKind::kCall, .call = hook});
    return [plan](CpuEngineConfig& config) {
      keep_pages(config);
      config.disk->channel_factory = faulty_channel_factory(plan);
    };
  }
};

TEST_F(KeptPagesTest, EvictedPagesAreCachedAndServeTheNextRequest) {
  TestEngine engine(keep_pages);
  char* address = engine.allocate(3 * kMiB);
  fill_pattern(address, 3 * kMiB, 1);
  ASSERT_TRUE(engine.evict(address));
  EXPECT_EQ(engine->heap().cached_bytes(), 3 * kMiB);
  EXPECT_EQ(engine->budget().used(), 3 * kMiB);
  EXPECT_EQ(engine.read(engine.stats().evicted_bytes), 3 * kMiB);
  EXPECT_TRUE(has_pattern(address, 3 * kMiB, 1)) << "through the cold mapping";
  char* next = engine.allocate(3 * kMiB);
  EXPECT_NE(next, address);
  EXPECT_TRUE(has_pattern(next, 3 * kMiB, 1)) << "the very pages";
  EXPECT_EQ(engine->heap().cached_bytes(), 0u);
  fill_pattern(next, 3 * kMiB, 2);
  engine.use({address});
  EXPECT_TRUE(has_pattern(address, 3 * kMiB, 1));
  EXPECT_EQ(engine.check_books(), "");
}

TEST_F(KeptPagesTest, BytesThatDifferComeBack) {
  char* address = nullptr;
  TestEngine engine(keep_pages_with([&address] { address[5] = 9; }));
  address = engine.allocate(3 * kMiB);
  memset(address, 5, 3 * kMiB);
  EXPECT_FALSE(engine.evict(address));
  EXPECT_TRUE(engine.is_resident(address));
  EXPECT_EQ(address[5], 9);
  EXPECT_EQ(engine->heap().cached_bytes(), 0u);
  ASSERT_TRUE(engine.evict(address));
  EXPECT_EQ(engine.check_books(), "");
}

// Where the kernel refuses to move pages back they are copied; nobody may go without them.
TEST_F(KeptPagesTest, BytesComeBackThoughMappingsHaveRunOut) {
  const int outcome = run_in_child([] {
    char* address = nullptr;
    TestEngine engine(keep_pages_with([&address] { address[5] = 9; }));
    // Of two neighbours one has this bit in its address; its pages leave for the other's place.
    address = engine.allocate(kGranuleBytes);
    char* other = engine.allocate(kGranuleBytes);
    if ((reinterpret_cast<uintptr_t>(address) & kGranuleBytes) == 0) std::swap(address, other);
    engine.free(other);
    engine->heap().drop_cached(kGranuleBytes);
    memset(address, 5, kGranuleBytes);
    if (!deny_syscall_when(SYS_mremap, ENOMEM, 4, kGranuleBytes)) _exit(kSkipped);
    EXPECT_FALSE(engine.evict(address));
    EXPECT_TRUE(engine.is_resident(address));
    EXPECT_EQ(address[5], 9);
    EXPECT_EQ(address[kGranuleBytes - 1], 5);
    EXPECT_EQ(engine.check_books(), "");
  });
  if (outcome == kSkipped) GTEST_SKIP() << "the kernel allows no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

// The kernel moves only what is one mapping to it, and the program may have split it. Such an
// extent leaves by the other window.
TEST_F(KeptPagesTest, MappingThatTheProgramHasSplitLeavesAllTheSame) {
  TestEngine engine(keep_pages);
  char* address = engine.allocate(3 * kMiB);
  fill_pattern(address, 3 * kMiB, 1);
  ASSERT_EQ(madvise(address + kMiB, kMiB, MADV_DONTDUMP), 0);
  EXPECT_TRUE(engine.evict(address));
  EXPECT_EQ(engine.read(engine.stats().eviction_failures), 0u);
  engine.use({address});
  EXPECT_TRUE(has_pattern(address, 3 * kMiB, 1));
  EXPECT_EQ(engine.check_books(), "");
}

TEST_F(KeptPagesTest, WhatTheKernelDoesNotMoveLeavesAllTheSame) {
  const int outcome = run_in_child([] {
    TestEngine engine(keep_pages);
    char* address = engine.allocate(3 * kMiB);
    fill_pattern(address, 3 * kMiB, 1);
    constexpr int kKeepSource = 4;  // MREMAP_DONTUNMAP
    if (!deny_syscall_when(SYS_mremap, EFAULT, 3, kKeepSource)) _exit(kSkipped);
    EXPECT_TRUE(engine.evict(address));
    EXPECT_EQ(engine.read(engine.stats().eviction_failures), 0u);
    EXPECT_EQ(engine->budget().used(), 0u) << "its pages went";
    engine.use({address});
    EXPECT_TRUE(has_pattern(address, 3 * kMiB, 1));
    EXPECT_EQ(engine.check_books(), "");
  });
  if (outcome == kSkipped) GTEST_SKIP() << "the kernel allows no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

// Whoever comes by while pages leave and come back, in user code or in a system call, finds the
// right bytes and no error.
TEST_F(KeptPagesTest, NobodyNoticesWhatMoves) {
  TestEngine engine(keep_pages);
  char* address = engine.allocate(3 * kMiB);
  memset(address, 5, 3 * kMiB);
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> wrong{0};
  {
    std::jthread reader([&] {
      const volatile char* bytes = address;
      while (!is_over.load()) {
        for (uint64_t offset = 0; offset < 3 * kMiB; offset += kPageBytes) {
          if (bytes[offset] != 5) wrong.fetch_add(1);
        }
      }
    });
    std::jthread kernel_reader([&] {
      while (!is_over.load()) {
        for (uint64_t offset = 0; offset < 3 * kMiB; offset += 64 * kPageBytes) {
          if (!is_readable(address + offset)) wrong.fetch_add(1);
        }
      }
    });
    for (int round = 0; round < 100; ++round) {
      EXPECT_TRUE(engine.evict(address));
      engine.use({address});
    }
    is_over.store(true);
  }
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(engine.check_books(), "");
}

// Its room has to become free, so the pages go.
TEST_F(KeptPagesTest, WhoWaitsForRoomGetsIt) {
  TestEngine engine([](CpuEngineConfig& config) {
    keep_pages(config);
    config.budget_bytes = 16 * kMiB;
  });
  std::vector<char*> extents;
  for (uint64_t index = 0; index < 12; ++index) {
    extents.push_back(engine.allocate(3 * kMiB));
    fill_pattern(extents.back(), 3 * kMiB, index);
    engine.use({extents.back()}, AccessMode::kWrite);
  }
  for (uint64_t index = 0; index < extents.size(); ++index) {
    const GateScope op(engine, {extents[index]});
    EXPECT_TRUE(has_pattern(extents[index], 3 * kMiB, index));
  }
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
  EXPECT_LE(engine.read(engine.stats().peak_device_bytes), 16 * kMiB);
  EXPECT_EQ(engine.check_books(), "");
}

}  // namespace
}  // namespace tencache
