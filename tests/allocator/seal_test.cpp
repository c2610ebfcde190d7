// SPDX-License-Identifier: Apache-2.0
//
// Evictions that park the pages (engine/move/cpu/seal.h, engine/move/cpu/parked_evictions.h):
// where the pages are then, what brings them back, which extents leave by the write-protected
// window instead, and that nobody notices. The tests are skipped where the kernel does not allow
// userfaultfd.
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

#include "base/clock.h"
#include "platform/access_barrier.h"
#include "support/accessible.h"
#include "support/child_process.h"
#include "support/eventually.h"
#include "support/faulty_channel.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

class ParkedPagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!AccessBarrier::open().is_ok()) GTEST_SKIP() << "userfaultfd is not allowed here";
  }
  static void park_pages(CpuEngineConfig& config) { config.userfaultfd = Choice::kOn; }
  /// Parks pages, and calls `hook` once, when the first piece of an eviction has been written.
  static TestEngine::Adjust park_pages_with(const std::function<void()>& hook) {
    auto plan = std::make_shared<FaultPlan>();
    plan->add({.first = 2, .count = 1, .kind = FaultKind::kCall, .call = hook});
    return [plan](CpuEngineConfig& config) {
      park_pages(config);
      config.disk->channel_factory = faulty_channel_factory(plan);
    };
  }
};

TEST_F(ParkedPagesTest, EvictedPagesAreCachedAndServeTheNextRequest) {
  TestEngine engine(park_pages);
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

// The extent is presumed clean, and found to differ when its pages have already moved away.
TEST_F(ParkedPagesTest, BytesThatDifferAreWritten) {
  TestEngine engine(park_pages);
  char* address = engine.allocate(3 * kMiB);
  fill_pattern(address, 3 * kMiB, 1);
  ASSERT_TRUE(engine.evict(address));
  engine.use({address});
  fill_pattern(address, 3 * kMiB, 2);
  ASSERT_TRUE(engine.extent(address)->is_presumed_clean());
  ASSERT_TRUE(engine.evict(address));
  EXPECT_EQ(engine.read(engine.stats().disk_written_bytes), 6 * kMiB);
  EXPECT_EQ(engine.read(engine.stats().clean_dropped_bytes), 0u);
  engine.use({address});
  EXPECT_TRUE(has_pattern(address, 3 * kMiB, 2));
  EXPECT_EQ(engine.check_books(), "");
}

// ---- Wanted while its pages are away (engine/move/cpu/parked_evictions.h) -------------------

class WantedWhileWrittenTest : public ParkedPagesTest {
 protected:
  static constexpr uint64_t kBytes = 3 * kMiB;

  void SetUp() override {
    ParkedPagesTest::SetUp();
    if (IsSkipped()) return;
    engine_ = std::make_unique<TestEngine>(park_pages_with([this] { hook_(); }));
    address_ = engine_->allocate(kBytes);
    fill_pattern(address_, kBytes, 1);
  }
  TestEngine& engine() { return *engine_; }
  /// Another thread does something that makes it wait for the extent; returns once it waits.
  void want(std::function<void()> action) {
    other_ = std::jthread(std::move(action));
    EXPECT_TRUE(eventually([this] { return Extent::pins_of(extent()->load()) > 0; }));
  }
  Extent* extent() { return engine().extent(address_); }

  std::function<void()> hook_ = [] {};
  std::unique_ptr<TestEngine> engine_;
  char* address_ = nullptr;
  std::jthread other_;
};

TEST_F(WantedWhileWrittenTest, OpGetsItBackAtOnce) {
  hook_ = [this] {
    EXPECT_EQ(extent()->state(), ExtentState::kSealing);
    want([this] { engine().use({address_}); });
  };
  EXPECT_FALSE(engine().evict(address_));
  other_.join();
  EXPECT_TRUE(engine().is_resident(address_));
  EXPECT_TRUE(has_pattern(address_, kBytes, 1));
  EXPECT_EQ(engine().device().disk()->used_bytes(), 0u) << "its slot may hold anything";
  EXPECT_EQ(engine()->heap().cached_bytes(), 0u);
  EXPECT_EQ(engine().read(engine().stats().fetched_bytes), 0u);
  EXPECT_EQ(engine().check_books(), "");
  ASSERT_TRUE(engine().evict(address_));
  engine().use({address_});
  EXPECT_TRUE(has_pattern(address_, kBytes, 1));
}

TEST_F(WantedWhileWrittenTest, RequestToFetchItCallsItOff) {
  hook_ = [this] { raise_to(extent()->last_use_at, timestamp() + 1); };
  EXPECT_FALSE(engine().evict(address_));
  EXPECT_TRUE(engine().is_resident(address_));
  EXPECT_TRUE(has_pattern(address_, kBytes, 1));
  EXPECT_EQ(engine().check_books(), "");
}

TEST_F(WantedWhileWrittenTest, WhoFreesItDoesNotWaitForTheEnd) {
  Extent* freed = extent();
  hook_ = [this] { want([this] { engine().free(address_); }); };
  EXPECT_FALSE(engine().evict(address_));
  other_.join();
  EXPECT_EQ(freed->state(), ExtentState::kCached);
  EXPECT_EQ(Extent::pins_of(freed->load()), 0u);
  EXPECT_FALSE(freed->has(kFlagBusy));
  EXPECT_EQ(engine().device().disk()->used_bytes(), 0u);
  EXPECT_EQ(engine().check_books(), "");
}

TEST_F(WantedWhileWrittenTest, OthersOfItsBatchLeave) {
  char* second = engine().allocate(kBytes);
  fill_pattern(second, kBytes, 2);
  hook_ = [this] { want([this] { engine().use({address_}, AccessMode::kWrite); }); };
  Extent* extents[] = {extent(), engine().extent(second)};
  for (Extent* one : extents) one->set_flags(kFlagSeen);
  EXPECT_EQ(engine()->mover()->evict(extents).bytes, kBytes);
  other_.join();
  EXPECT_TRUE(engine().is_resident(address_));
  EXPECT_TRUE(engine().is_cold(second));
  EXPECT_TRUE(has_pattern(address_, kBytes, 1));
  EXPECT_TRUE(has_pattern(second, kBytes, 2));
  EXPECT_EQ(engine().check_books(), "");
}

// No gate announced the write, so the extent does not come back; the write arrives all the same.
TEST_F(WantedWhileWrittenTest, StrayWriteWaitsAndIsKept) {
  hook_ = [this] { other_ = std::jthread([this] { address_[5] = 9; }); };
  EXPECT_TRUE(engine().evict(address_));
  other_.join();
  EXPECT_EQ(address_[5], 9);
  engine().use({address_});
  EXPECT_EQ(address_[5], 9);
  fill_pattern(address_, 8, 1);
  EXPECT_TRUE(has_pattern(address_, kBytes, 1)) << "besides that byte";
  EXPECT_EQ(engine().read(engine().stats().unannounced_writes), 1u);
  EXPECT_EQ(engine().check_books(), "");
}

TEST_F(ParkedPagesTest, FailedWriteBringsThePagesBack) {
  auto plan = std::make_shared<FaultPlan>();
  TestEngine engine([&plan](CpuEngineConfig& config) {
    park_pages(config);
    config.disk->channel_factory = faulty_channel_factory(plan);
  });
  std::vector<Extent*> extents;
  for (const uint64_t seed : {1, 2}) {
    char* address = engine.allocate(3 * kMiB);
    fill_pattern(address, 3 * kMiB, seed);
    extents.push_back(engine.extent(address));
    extents.back()->set_flags(kFlagSeen);
  }
  plan->add({.first = 4, .count = 1, .kind = FaultKind::kFail, .error_number = ENOSPC});
  const EvictionResult result = engine->mover()->evict(extents);
  EXPECT_EQ(result.count, 0u);
  EXPECT_FALSE(result.failure.is_ok());
  EXPECT_EQ(engine.read(engine.stats().eviction_failures), 2u);
  for (size_t index = 0; index < extents.size(); ++index) {
    EXPECT_TRUE(engine.is_resident(extents[index]->address));
    EXPECT_TRUE(has_pattern(extents[index]->address, 3 * kMiB, index + 1));
  }
  EXPECT_EQ(engine->heap().cached_bytes(), 0u);
  EXPECT_EQ(engine.check_books(), "");
  EXPECT_EQ(engine->mover()->evict(extents).count, 2u);
  EXPECT_EQ(engine.check_books(), "");
}

TEST_F(ParkedPagesTest, SlotThatTheKernelDoesNotMapBringsThePagesBack) {
  const int outcome = run_in_child([] {
    TestEngine engine(park_pages);
    char* first = engine.allocate(3 * kMiB);  // its slot begins at 0
    EXPECT_TRUE(engine.evict(first));
    char* address = engine.allocate(3 * kMiB);
    fill_pattern(address, 3 * kMiB, 1);
    constexpr unsigned kOffset = 5;  // argument of mmap; only a file mapping has one
    if (!deny_syscall_when(SYS_mmap, ENOMEM, kOffset, 3 * kMiB)) _exit(kSkipped);
    EXPECT_FALSE(engine.evict(address));
    EXPECT_TRUE(engine.is_resident(address));
    EXPECT_TRUE(has_pattern(address, 3 * kMiB, 1));
    EXPECT_EQ(engine.read(engine.stats().eviction_failures), 1u);
    EXPECT_EQ(engine.check_books(), "");
  });
  if (outcome == kSkipped) GTEST_SKIP() << "the kernel allows no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

// Where the kernel refuses to move pages back they are copied, because the bytes must come back.
TEST_F(ParkedPagesTest, BytesComeBackThoughMappingsHaveRunOut) {
  const int outcome = run_in_child([] {
    char* address = nullptr;
    Extent* extent = nullptr;
    TestEngine engine(park_pages_with([&extent] { extent->pin(); }));
    // One of two neighbours has the bit kGranuleBytes in its address; its pages leave for the
    // other's place.
    address = engine.allocate(kGranuleBytes);
    char* other = engine.allocate(kGranuleBytes);
    if ((reinterpret_cast<uintptr_t>(address) & kGranuleBytes) == 0) std::swap(address, other);
    engine.free(other);
    engine->heap().drop_cached(kGranuleBytes);
    memset(address, 5, kGranuleBytes);
    extent = engine.extent(address);
    if (!deny_syscall_when(SYS_mremap, ENOMEM, 4, kGranuleBytes)) _exit(kSkipped);
    EXPECT_FALSE(engine.evict(address));
    EXPECT_TRUE(engine.is_resident(address));
    EXPECT_EQ(address[5], 5);
    EXPECT_EQ(address[kGranuleBytes - 1], 5);
    extent->unpin();
    EXPECT_EQ(engine.check_books(), "");
  });
  if (outcome == kSkipped) GTEST_SKIP() << "the kernel allows no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

// The kernel moves only a range that is one mapping to it, and the program may have split it. Such
// an extent leaves by the write-protected window.
TEST_F(ParkedPagesTest, MappingThatTheProgramHasSplitLeavesAllTheSame) {
  TestEngine engine(park_pages);
  char* address = engine.allocate(3 * kMiB);
  fill_pattern(address, 3 * kMiB, 1);
  ASSERT_EQ(madvise(address + kMiB, kMiB, MADV_DONTDUMP), 0);
  EXPECT_TRUE(engine.evict(address));
  EXPECT_EQ(engine.read(engine.stats().eviction_failures), 0u);
  engine.use({address});
  EXPECT_TRUE(has_pattern(address, 3 * kMiB, 1));
  EXPECT_EQ(engine.check_books(), "");
}

TEST_F(ParkedPagesTest, WhatTheKernelDoesNotMoveLeavesAllTheSame) {
  const int outcome = run_in_child([] {
    TestEngine engine(park_pages);
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

// A thread that accesses pages while they leave and come back, in user code or in a system call,
// finds the right bytes and no error.
TEST_F(ParkedPagesTest, NobodyNoticesWhatMoves) {
  TestEngine engine(park_pages);
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

// The room of what leaves has to become free, so the pages go.
TEST_F(ParkedPagesTest, WhoWaitsForRoomGetsIt) {
  TestEngine engine([](CpuEngineConfig& config) {
    park_pages(config);
    config.budget_bytes = 16 * kMiB;
  });
  const std::vector<char*> extents = engine.written(12, 3 * kMiB);
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
