// SPDX-License-Identifier: Apache-2.0
//
// Which extents leave when room is short, which threads wait, and what an allocation is told when
// nothing may leave.
#include "engine/plan/evictor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "memory/budget.h"
#include "support/eventually.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBudget = 32 * kMiB;

TestEngine::Adjust small_budget(std::function<void(CpuEngineConfig&)> more = {}) {
  return [more](CpuEngineConfig& config) {
    config.budget_bytes = kBudget;
    if (more) more(config);
  };
}

TEST(EvictorTest, AllocationThatFindsNoRoomGetsItFromTheOldest) {
  TestEngine engine(small_budget());
  const std::vector<char*> addresses = engine.written(60, kMiB);
  EXPECT_LE(engine.read(engine.stats().peak_device_bytes), kBudget);
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
  EXPECT_TRUE(engine.is_cold(addresses.front()));
  EXPECT_TRUE(engine.is_resident(addresses.back()));
  for (uint64_t index = 0; index < 60; ++index) {
    const GateScope op(engine, {addresses[index]});
    ASSERT_TRUE(has_pattern(addresses[index], kMiB, index)) << index;
  }
  EXPECT_LE(engine.read(engine.stats().peak_device_bytes), kBudget);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(EvictorTest, HeadroomIsRestoredWithoutAnyDemand) {
  TestEngine engine(small_budget());
  const std::vector<char*> addresses = engine.written(32, kMiB);  // fills the budget
  EXPECT_TRUE(eventually([&] { return engine->budget().free() >= headroom_of(kBudget); }));
  for (uint64_t index = 0; index < 20; ++index) {
    EXPECT_FALSE(engine.is_cold(addresses[31 - index])) << "evicts more than it keeps free";
  }
}

// Where cached pages serve any request, a thread that waits for room needs only enough of them.
TEST(EvictorTest, ThoseWhomCachedPagesServeWaitForThem) {
  TestEngine engine(small_budget());
  const std::vector<char*> addresses = engine.written(30, kMiB);
  Heap& heap = engine->heap();
  if (!heap.can_use_any_cached()) GTEST_SKIP() << "the kernel does not move pages here";
  ASSERT_LT(engine->budget().free() + heap.cached_bytes(), 8 * kMiB);
  heap.await_any_room(8 * kMiB);
  EXPECT_GE(engine->budget().free() + heap.cached_bytes(), 8 * kMiB);
  EXPECT_TRUE(engine.is_cold(addresses.front()));
  EXPECT_TRUE(engine.is_resident(addresses.back()));
  EXPECT_EQ(engine.check_books(), "");
}

TEST(EvictorTest, NobodyWaitsForRoomThatNothingCanMake) {
  TestEngine engine(small_budget());
  const std::vector<char*> addresses = engine.written(30, kMiB);
  std::vector<Access> accesses;
  for (const char* address : addresses) accesses.push_back({address, AccessMode::kRead});
  const GateScope op(engine, accesses);
  engine->heap().await_any_room(8 * kMiB);
  EXPECT_EQ(engine.read(engine.stats().evicted_bytes), 0u);
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u) << "it only waits";
}

TEST(EvictorTest, LeastRecentlyUsedGoFirst) {
  TestEngine engine(small_budget());
  const std::vector<char*> addresses = engine.written(20, kMiB);
  for (const uint64_t again : {0u, 3u, 5u}) engine.use({addresses[again]}, AccessMode::kWrite);
  engine.allocate(16 * kMiB);  // four too many, and the headroom
  for (const uint64_t again : {0u, 3u, 5u}) EXPECT_FALSE(engine.is_cold(addresses[again]));
  for (const uint64_t old : {1u, 2u, 4u, 6u}) EXPECT_TRUE(engine.is_cold(addresses[old])) << old;
}

TEST(EvictorTest, AmongTheOldTheCleanGoFirst) {
  TestEngine engine(small_budget());
  const std::vector<char*> addresses = engine.written(24, kMiB);
  engine->heap().empty_cache();  // padding would make the room
  ASSERT_TRUE(engine.evict(addresses[2]));
  ASSERT_TRUE(engine.evict(addresses[3]));
  for (char* address : addresses) engine.use({address});  // all in order, 2 and 3 clean now
  const uint64_t written = engine.read(engine.stats().disk_written_bytes);
  ASSERT_TRUE(engine->budget().try_reserve(engine->budget().free()));
  Status reason;
  ASSERT_TRUE(engine->evictor().make_room(kMiB, 0, &reason));
  EXPECT_TRUE(engine.is_cold(addresses[2]));
  EXPECT_TRUE(engine.is_cold(addresses[3]));
  EXPECT_GE(engine.read(engine.stats().clean_dropped_bytes), 2 * kMiB);
  EXPECT_LE(engine.read(engine.stats().disk_written_bytes) - written, 2 * kMiB);
}

// A thread that requests one extent after another waits only once.
TEST(EvictorTest, RoomIsMadeForWhatIsAskedForSoon) {
  TestEngine engine(small_budget());
  engine.written(24, kMiB);
  ASSERT_TRUE(engine->budget().try_reserve(engine->budget().free()));
  ASSERT_LT(engine->evictor().headroom_bytes(), 4 * kMiB);
  Status reason;
  ASSERT_TRUE(engine->evictor().make_room(kMiB, 8 * kMiB, &reason));
  EXPECT_TRUE(eventually([&] { return engine->budget().free() >= 8 * kMiB; }));
}

TEST(EvictorTest, WorkingSetOfOneOpMayExceedTheBudgetAndIsCounted) {
  TestEngine engine(small_budget());
  std::vector<Access> accesses;
  for (char* address : engine.written(40, kMiB)) accesses.push_back({address, AccessMode::kRead});
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
  {
    const GateScope op(engine, accesses);
    for (uint64_t index = 0; index < 40; ++index) {
      ASSERT_TRUE(has_pattern(static_cast<const char*>(accesses[index].address), kMiB, index));
    }
    EXPECT_EQ(engine->budget().used(), 40 * kMiB);
  }
  EXPECT_GT(engine.read(engine.stats().over_budget_events), 0u);
  EXPECT_EQ(engine.read(engine.stats().over_budget_peak_bytes), 8 * kMiB);
  EXPECT_TRUE(eventually([&] { return engine->budget().used() <= kBudget; }));
}

TEST(EvictorTest, WhatNoOpHasNamedLeavesOnlyWhenNothingElseIsLeft) {
  TestEngine engine(small_budget());
  const std::vector<char*> used = engine.written(8, kMiB);
  std::vector<char*> unseen;
  for (uint64_t index = 0; index < 24; ++index) {
    unseen.push_back(engine.allocate(kMiB));
    fill_pattern(unseen.back(), kMiB, 100 + index);
  }
  for (int index = 0; index < 4; ++index) engine.allocate(kMiB);
  for (char* address : unseen) EXPECT_TRUE(engine.is_resident(address));
  for (int index = 0; index < 16; ++index) engine.allocate(kMiB);
  for (char* address : used) EXPECT_TRUE(engine.is_cold(address));
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
  for (uint64_t index = 0; index < 24; ++index) {
    EXPECT_TRUE(has_pattern(unseen[index], kMiB, 100 + index));
  }
}

TEST(EvictorTest, CacheIsDroppedBeforeAnythingIsEvicted) {
  TestEngine engine(small_budget());
  const std::vector<char*> addresses = engine.written(16, kMiB);
  engine.free(engine.allocate(14 * kMiB));
  engine.allocate(12 * kMiB);
  EXPECT_EQ(engine.read(engine.stats().evicted_bytes), 0u);
  for (char* address : addresses) EXPECT_TRUE(engine.is_resident(address));
}

TEST(EvictorTest, FailingDiskIsTheReasonAndMemoryIsKept) {
  auto plan = std::make_shared<FaultPlan>();
  TestEngine engine(small_budget([&](CpuEngineConfig& config) {
    config.disk->channel_factory = faulty_channel_factory(plan);
  }));
  Fault fault;
  fault.error_number = ENOSPC;
  plan->add(fault);
  const std::vector<char*> addresses = engine.written(31, kMiB);
  const Result<void*> refused = engine->allocate(8 * kMiB);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  const std::string& text = refused.status().message();
  EXPECT_NE(text.find(" out of memory."), std::string::npos) << text;
  EXPECT_NE(text.find("Nothing can be spilled: "), std::string::npos) << text;
  EXPECT_NE(text.find("No space left on device"), std::string::npos) << text;
  for (uint64_t index = 0; index < 31; ++index) {
    EXPECT_TRUE(has_pattern(addresses[index], kMiB, index));
  }
  plan->clear();
  EXPECT_TRUE(engine->allocate(8 * kMiB).is_ok()) << "the disk works again";
  EXPECT_EQ(engine.check_books(), "");
}

TEST(EvictorTest, FullDiskIsTheReason) {
  TestEngine engine(
      small_budget([](CpuEngineConfig& config) { config.disk->quota_bytes = 4 * kMiB; }));
  engine.written(31, kMiB);
  const Result<void*> refused = engine->allocate(16 * kMiB);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_NE(refused.status().message().find("quota of 4.00 MiB"), std::string::npos)
      << refused.status().message();
  EXPECT_LE(engine.read(engine.stats().peak_device_bytes), kBudget);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(EvictorTest, ArmsOnceAtTheWatermark) {
  std::atomic<int> armed{0};
  TestEngine engine(small_budget([&](CpuEngineConfig& config) {
    config.arm_at = 0.5;
    config.hooks.on_arm = [&] { armed.fetch_add(1); };
  }));
  engine.allocate(15 * kMiB);
  EXPECT_EQ(armed.load(), 0);
  EXPECT_FALSE(engine->evictor().is_armed());
  engine.allocate(2 * kMiB);
  EXPECT_EQ(armed.load(), 1);
  EXPECT_TRUE(engine->evictor().is_armed());
  {
    std::vector<std::jthread> threads;
    for (int index = 0; index < 4; ++index) {
      threads.emplace_back([&] { engine.allocate(2 * kMiB); });
    }
  }
  EXPECT_EQ(armed.load(), 1);
}

TEST(EvictorTest, CachedMemoryDoesNotArm) {
  TestEngine engine(small_budget([](CpuEngineConfig& config) { config.arm_at = 0.5; }));
  char* first = engine.allocate(16 * kMiB);
  engine.free(first);
  std::vector<char*> others;
  for (int index = 0; index < 12; ++index) others.push_back(engine.allocate(kMiB));
  EXPECT_FALSE(engine->evictor().is_armed());
  EXPECT_GT(engine.read(engine.stats().peak_device_bytes), kBudget / 2);
  engine.allocate(5 * kMiB);
  EXPECT_TRUE(engine->evictor().is_armed()) << "now the program has that much";
}

TEST(EvictorTest, FirstSpillIsToldOnceAndPassesPollFirst) {
  std::atomic<int> spills{0};
  std::atomic<int> polls{0};
  TestEngine engine(small_budget([&](CpuEngineConfig& config) {
    config.hooks.on_first_spill = [&] {
      EXPECT_GT(polls.load(), 0);
      spills.fetch_add(1);
    };
    config.hooks.before_pass = [&] { polls.fetch_add(1); };
  }));
  engine.written(10, kMiB);
  EXPECT_EQ(spills.load(), 0);
  engine.written(60, kMiB);
  EXPECT_EQ(engine->evictor().evict_all() > 0, true);
  EXPECT_EQ(spills.load(), 1);
}

// The poll (before_pass) may give up the pins that stood in the way.
TEST(EvictorTest, HoldsGivenUpByThePollMakeRoom) {
  std::atomic<Hold*> hold{nullptr};
  Engine* target = nullptr;
  TestEngine engine(small_budget([&](CpuEngineConfig& config) {
    config.hooks.before_pass = [&] {
      if (Hold* held = hold.exchange(nullptr)) target->gate().unhold(held);
    };
  }));
  target = &*engine;
  std::vector<Access> accesses;
  for (char* address : engine.written(20, kMiB)) accesses.push_back({address, AccessMode::kRead});
  hold.store(engine->gate().hold(accesses, false));
  engine.allocate(20 * kMiB);
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
}

TEST(EvictorTest, EvictAllEvictsAllThatMayGo) {
  TestEngine engine;
  const std::vector<char*> addresses = engine.written(8, kMiB);
  char* unseen = engine.allocate(kMiB);
  const GateScope op(engine, {addresses[3]});
  EXPECT_EQ(engine->evictor().evict_all(), 7u);
  EXPECT_TRUE(engine.is_resident(unseen));
  EXPECT_TRUE(engine.is_resident(addresses[3]));
  EXPECT_EQ(engine->evictor().evict_all(), 0u);
}

TEST(EvictorTest, ThreadsShareTheRoom) {
  TestEngine engine(small_budget());
  {
    std::vector<std::jthread> threads;
    for (uint64_t index = 0; index < 4; ++index) {
      threads.emplace_back([&engine, index] {
        std::vector<char*> mine;
        for (uint64_t round = 0; round < 20; ++round) {
          mine.push_back(engine.allocate(kMiB));
          fill_pattern(mine.back(), kMiB, index * 100 + round);
          engine.use({mine.back()}, AccessMode::kWrite);
        }
        for (uint64_t round = 0; round < 20; ++round) {
          const GateScope op(engine, {mine[round]});
          EXPECT_TRUE(has_pattern(mine[round], kMiB, index * 100 + round));
        }
      });
    }
  }
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
  EXPECT_LE(engine.read(engine.stats().peak_device_bytes), kBudget);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(EvictorTest, StrictModeNeverEvicts) {
  std::atomic<int> armed{0};
  TestEngine engine(small_budget([&](CpuEngineConfig& config) {
    config.heap.strict = true;
    config.disk.reset();
    config.hooks.on_arm = [&] { armed.fetch_add(1); };
  }));
  std::vector<char*> addresses = engine.written(30, kMiB);
  EXPECT_EQ(armed.load(), 1);
  const uint32_t op = engine->recorder().register_op("aten::relu");
  {
    const GateScope scope(engine, std::vector<Access>{{addresses[0], AccessMode::kRead}}, op);
    const Result<void*> refused = engine->allocate(3 * kMiB);
    ASSERT_FALSE(refused.is_ok());
    const std::string& text = refused.status().message();
    EXPECT_NE(text.find("ran out of memory. Tried to allocate 3.00 MiB in aten::relu with 30.0 MiB "
                        "of the device budget of 32.0 MiB in use."),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("this allocation would have fitted into 33MiB"), std::string::npos);
  }
  EXPECT_EQ(engine->evictor().evict_all(), 0u);
  engine.free(addresses[0]);
  engine.free(addresses[1]);
  EXPECT_TRUE(engine->allocate(3 * kMiB).is_ok());
  EXPECT_LE(engine.read(engine.stats().peak_device_bytes), kBudget);
}

}  // namespace
}  // namespace tencache
