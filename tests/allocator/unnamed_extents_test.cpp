// SPDX-License-Identifier: Apache-2.0
//
// Extents that no op has named: which of them leave when nothing else is left, and that a program
// which only loads stays within its budget.
#include "memory/unnamed_extents.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "base/units.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

/// Resident extents of 1 MiB each, with ids in the order of their making.
class UnnamedExtentsTest : public ::testing::Test {
 protected:
  Extent& make() {
    Extent& extent = extents_.emplace_back();
    extent.id = extents_.size();
    extent.bytes = kMiB;
    extent.commit();
    return extent;
  }
  std::vector<ListedExtent> listed() {
    std::vector<ListedExtent> listed;
    for (Extent& extent : extents_) listed.insert(listed.begin(), {&extent, nullptr, kMiB});
    return listed;
  }
  // Returns one character for each extent, the oldest first: 's' for one that is seen, else '-'.
  std::string seen() const {
    std::string text;
    for (const Extent& extent : extents_) text += extent.has(kFlagSeen) ? 's' : '-';
    return text;
  }

  std::deque<Extent> extents_;
};

TEST_F(UnnamedExtentsTest, OldestGoAndOnlyAsManyAsNeeded) {
  for (int index = 0; index < 6; ++index) make();
  EXPECT_EQ(count_oldest_as_seen(listed(), kMiB + 1, 0), 2 * kMiB);
  EXPECT_EQ(seen(), "ss----");
  EXPECT_EQ(count_oldest_as_seen(listed(), kMiB, kMiB), 2 * kMiB);
  EXPECT_EQ(seen(), "ssss--");
}

TEST_F(UnnamedExtentsTest, NewestOfEachThreadGoesAfterAllOthers) {
  for (const uint64_t thread : {1, 1, 2, 2, 2}) make().allocated_by = thread;
  EXPECT_EQ(count_oldest_as_seen(listed(), kMiB, 16 * kMiB), 3 * kMiB);
  EXPECT_EQ(seen(), "s-ss-");
  EXPECT_EQ(count_oldest_as_seen(listed(), kMiB, 16 * kMiB), kMiB);
  EXPECT_EQ(seen(), "ssss-");
}

TEST_F(UnnamedExtentsTest, NewestGoesOnlyWhenItIsNeeded) {
  for (int index = 0; index < 3; ++index) make();
  EXPECT_EQ(count_oldest_as_seen(listed(), kMiB, 16 * kMiB), 2 * kMiB);
  EXPECT_EQ(seen(), "ss-");
  EXPECT_EQ(count_oldest_as_seen(listed(), kMiB, 16 * kMiB), kMiB);
  EXPECT_EQ(seen(), "sss");
  EXPECT_EQ(count_oldest_as_seen(listed(), kMiB, 0), 0u) << "none is left";
}

TEST_F(UnnamedExtentsTest, WhatIsInUseOrKeptOrSeenIsPassedOver) {
  make().pin();
  make().set_flags(kFlagKeepResident);
  make().set_flags(kFlagSeen);
  ASSERT_TRUE(make().try_take_busy());
  make().retire();  // cached
  make();
  EXPECT_EQ(count_oldest_as_seen(listed(), 16 * kMiB, 0), kMiB);
  EXPECT_EQ(seen(), "--s--s");
}

// A loader allocates and fills, and no op names what it loads.
TEST(UnnamedExtents, WhatIsLoadedStaysWithinTheBudgetHoweverOftenRoomIsNeeded) {
  constexpr uint64_t kBudget = 16 * kMiB;
  TestEngine engine([](CpuEngineConfig& config) { config.budget_bytes = kBudget; });
  std::vector<char*> loaded;
  for (uint64_t index = 0; index < 3 * kBudget / kMiB; ++index) {
    loaded.push_back(engine.allocate(kMiB));
    fill_pattern(loaded.back(), kMiB, index);
  }
  EXPECT_LE(engine.read(engine.stats().peak_device_bytes), kBudget);
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
  for (uint64_t index = 0; index < loaded.size(); ++index) {
    const GateScope op(engine, {loaded[index]});
    ASSERT_TRUE(has_pattern(loaded[index], kMiB, index)) << index;
  }
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
  EXPECT_EQ(engine.check_books(), "");
}

}  // namespace
}  // namespace tencache
