// SPDX-License-Identifier: Apache-2.0
//
// The whole allocator over the cpu backend: slots, ways to the disk, chaos. backends_test.cpp has
// the properties of any backend.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "support/test_engine.h"

namespace tencache {
namespace {

// An extent that lost its slot when it was freed must not be taken for a copy of that slot in its
// next life, even if its new bytes hash alike.
TEST(EngineTest, RecycledExtentIsNotPresumedEqualToASlotItLost) {
  TestEngine engine;
  char* first = engine.allocate(kMiB);
  memset(first, 7, kMiB);
  engine.use({first}, AccessMode::kWrite);
  ASSERT_TRUE(engine.evict(first));
  engine.use({first});
  engine.free(first);
  char* other = engine.allocate(2 * kMiB);  // takes the slot that became free
  fill_pattern(other, 2 * kMiB, 2);
  engine.use({other}, AccessMode::kWrite);
  ASSERT_TRUE(engine.evict(other));
  char* second = engine.allocate(kMiB);
  ASSERT_EQ(second, first) << "not recycled";
  memset(second, 7, kMiB);
  engine.use({second});
  ASSERT_TRUE(engine.evict(second));
  for (uint64_t offset = 0; offset < kMiB; ++offset) ASSERT_EQ(second[offset], 7) << offset;
  EXPECT_TRUE(has_pattern(other, 2 * kMiB, 2));
  EXPECT_EQ(engine.check_books(), "");
}

TEST(EngineTest, ChaosEvictsAtTheEndOfOutermostOps) {
  TestEngine engine([](CpuEngineConfig& config) { config.chaos = ChaosConfig{7, 1.0}; });
  char* a = engine.allocate(kMiB);
  char* b = engine.allocate(kMiB);
  fill_pattern(a, kMiB, 1);
  fill_pattern(b, kMiB, 2);
  {
    const GateScope outer(engine, {a});
    { const GateScope inner(engine, {b}); }
    EXPECT_TRUE(engine.is_resident(b)) << "an inner op ended";
  }
  EXPECT_TRUE(engine.is_cold(a));
  EXPECT_TRUE(engine.is_cold(b));
  EXPECT_EQ(engine.read(engine.stats().chaos_evictions), 2u);
  for (int round = 0; round < 20; ++round) {
    const GateScope op(engine, {a, b});
    ASSERT_TRUE(has_pattern(a, kMiB, 1));
    ASSERT_TRUE(has_pattern(b, kMiB, 2));
  }
  EXPECT_EQ(engine.check_books(), "");
}

TEST(EngineTest, ChaosOfOneSeedIsTheSameEachTime) {
  std::vector<uint64_t> evictions;
  for (int run = 0; run < 2; ++run) {
    TestEngine engine([](CpuEngineConfig& config) { config.chaos = ChaosConfig{99, 0.5}; });
    char* address = engine.allocate(kPageBytes);
    for (int op = 0; op < 60; ++op) engine.use({address});
    evictions.push_back(engine.read(engine.stats().chaos_evictions));
  }
  EXPECT_EQ(evictions[0], evictions[1]);
  EXPECT_GT(evictions[0], 10u);
  EXPECT_LT(evictions[0], 50u);
}

TEST(EngineTest, EveryWayToTheDiskKeepsTheBytes) {
  for (const Choice io_uring : {Choice::kAuto, Choice::kOff}) {
    for (const Choice direct_io : {Choice::kAuto, Choice::kOff}) {
      TestEngine engine([&](CpuEngineConfig& config) {
        config.disk->io_uring = io_uring;
        config.disk->direct_io = direct_io;
      });
      char* address = engine.allocate(5 * kMiB + 3);
      for (uint64_t round = 0; round < 3; ++round) {
        fill_pattern(address, 5 * kMiB, round);
        ASSERT_TRUE(engine.evict(address));
        EXPECT_TRUE(has_pattern(address, 5 * kMiB, round));
        engine.use({address});
        EXPECT_TRUE(has_pattern(address, 5 * kMiB, round));
      }
    }
  }
}

TEST(EngineTest, SpillDirectoryThatIsMissingIsAnError) {
  CpuDeviceConfig config;
  config.budget_bytes = kMiB;
  config.arena_bytes = TestEngine::kArenaBytes;
  config.disk.emplace();
  config.disk->directory = "/nonexistent/spill";
  config.disk->quota_bytes = kGiB;
  const Result<std::unique_ptr<CpuDevice>> device = CpuDevice::open(config);
  ASSERT_FALSE(device.is_ok());
  EXPECT_NE(device.status().message().find("/nonexistent/spill"), std::string::npos);
}

}  // namespace
}  // namespace tencache
