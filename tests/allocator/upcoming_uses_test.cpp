// SPDX-License-Identifier: Apache-2.0
//
// A row of uses that is known before it begins: what it names is read once and ahead of its use,
// and what comes last leaves last. Rows end, are taken back, and belong to a thread.
#include "engine/plan/upcoming_uses.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "support/eventually.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 256 * kKiB;
constexpr size_t kBudgetExtents = 32;
constexpr size_t kRow = 2 * kBudgetExtents;

class UpcomingUsesTest : public ::testing::Test {
 protected:
  UpcomingUsesTest()
      : engine_([](CpuEngineConfig& config) { config.budget_bytes = kBudgetExtents * kBytes; }) {
    engine_->evictor().arm();
    row_ = engine_.written(kRow, kBytes);
  }

  void expect(const std::vector<char*>& addresses) {
    std::vector<Access> accesses;
    for (const char* address : addresses) accesses.push_back({address, AccessMode::kRead});
    engine_->expect(accesses);
  }
  void use_row() {
    for (size_t index = 0; index < kRow; ++index) {
      const GateScope op(engine_, {row_[index]});
      EXPECT_TRUE(has_pattern(row_[index], kBytes, index)) << index;
      // An op lasts this long, and other tensors can be fetched meanwhile.
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  uint64_t fetched_extents() { return engine_.read(engine_.stats().fetched_bytes) / kBytes; }

  TestEngine engine_;
  std::vector<char*> row_;
};

TEST_F(UpcomingUsesTest, WhatIsNeededLastStays) {
  use_row();
  uint64_t before = fetched_extents();
  use_row();
  ASSERT_GT(fetched_extents() - before, kRow * 7 / 8) << "the least recently used is needed next";
  before = fetched_extents();
  expect(row_);
  use_row();
  // Half of the row is there when it begins. Some of that leaves before its use, because nothing
  // else can; nothing leaves twice.
  EXPECT_LE(fetched_extents() - before, kRow * 3 / 4);
  EXPECT_EQ(engine_.check_books(), "");
}

// A plan that is followed does not know the row.
TEST_F(UpcomingUsesTest, WhatIsNeededLastStaysWhileAPlanIsFollowed) {
  const std::vector<char*> planned = engine_.written(8, kBytes);
  const auto step = [&] {
    for (const char* address : planned) const GateScope op(engine_, {address});
    engine_->gate().on_step();
  };
  const auto is_following = [&] { return engine_->learner()->summary().following.kind != 0; };
  use_row();
  ASSERT_TRUE(eventually([&] {
    step();
    return is_following();
  }));
  const uint64_t before = fetched_extents();
  expect(row_);
  use_row();
  EXPECT_LE(fetched_extents() - before, kRow * 3 / 4);
  EXPECT_TRUE(is_following());
  EXPECT_EQ(engine_.check_books(), "");
}

TEST_F(UpcomingUsesTest, TheNextIsFetchedAheadOfItsUse) {
  EXPECT_TRUE(eventually([&] {
    expect(row_);
    use_row();
    return engine_.read(engine_.stats().early_fetches) > kRow / 4;
  }));
  EXPECT_EQ(engine_.read(engine_.stats().over_budget_events), 0u);
  EXPECT_EQ(engine_.check_books(), "");
}

/// UpcomingUses alone, over the parts of an engine that does nothing meanwhile.
class UpcomingRowTest : public UpcomingUsesTest {
 protected:
  UpcomingRowTest() : prefetcher_(engine_->heap(), *engine_->mover()) {
    parts_.heap = &engine_->heap();
    parts_.prefetcher = &prefetcher_;  // its worker does not run, so requests stay
  }

  std::vector<Extent*> extents(size_t first, size_t count) {
    std::vector<Extent*> found;
    for (size_t index = first; index < first + count; ++index) {
      found.push_back(engine_.extent(row_[index]));
    }
    return found;
  }

  Prefetcher prefetcher_;
  Parts parts_;
};

TEST_F(UpcomingRowTest, PlacesCountFromWhereTheProgramIs) {
  UpcomingUses upcoming(parts_);
  EXPECT_FALSE(upcoming.is_active());
  EXPECT_TRUE(upcoming.next_uses().empty());
  upcoming.expect(extents(0, 4));
  EXPECT_TRUE(upcoming.is_active());
  EXPECT_EQ(upcoming.next_uses().at(extents(3, 1)[0]), 3u);
  upcoming.on_tick(extents(10, 2), false);
  EXPECT_EQ(upcoming.next_uses().size(), 4u) << "other extents move nothing";
  upcoming.on_tick(extents(0, 2), false);
  EXPECT_EQ(upcoming.next_uses().size(), 2u);
  EXPECT_EQ(upcoming.next_uses().at(extents(2, 1)[0]), 0u);
  upcoming.on_tick(extents(2, 2), false);
  EXPECT_FALSE(upcoming.is_active());
  EXPECT_TRUE(upcoming.next_uses().empty());
}

TEST_F(UpcomingRowTest, ARowIsTakenBackByItsThread) {
  UpcomingUses upcoming(parts_);
  upcoming.expect(extents(0, 4));
  std::thread([&] { upcoming.expect({}); }).join();
  EXPECT_TRUE(upcoming.is_active()) << "that thread gave none";
  upcoming.expect({});
  EXPECT_FALSE(upcoming.is_active());
  upcoming.expect(extents(0, 4));
  std::thread([&] { upcoming.expect(extents(4, 2)); }).join();
  EXPECT_EQ(upcoming.next_uses().size(), 2u) << "the newest row counts";
}

TEST_F(UpcomingRowTest, WhatIsThereIsNotRequested) {
  UpcomingUses upcoming(parts_);
  engine_.use({row_[0], row_[1]});
  upcoming.expect(extents(0, 2));
  upcoming.on_tick(extents(0, 1), false);
  EXPECT_FALSE(prefetcher_.has_requests());
  ASSERT_TRUE(engine_.is_cold(row_[2]) || engine_.evict(row_[2]));
  upcoming.expect(extents(0, 3));
  upcoming.on_tick(extents(0, 1), true);
  EXPECT_FALSE(prefetcher_.has_requests()) << "the plan does it";
  upcoming.on_tick(extents(0, 1), false);
  EXPECT_TRUE(prefetcher_.has_requests());
}

TEST_F(UpcomingRowTest, AFreedExtentIsNotMeantAnyMore) {
  UpcomingUses upcoming(parts_);
  upcoming.expect(extents(0, 2));
  const Extent* freed = extents(1, 1)[0];
  engine_.free(row_[1]);
  row_[1] = engine_.allocate(kBytes);  // may be the same Extent object
  EXPECT_LE(upcoming.next_uses().count(freed), engine_.extent(row_[1]) == freed ? 0u : 1u);
  engine_.use({row_[1]}, AccessMode::kWrite);
}

}  // namespace
}  // namespace tencache
