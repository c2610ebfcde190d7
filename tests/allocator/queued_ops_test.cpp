// SPDX-License-Identifier: Apache-2.0
//
// When fetches are given where ops are only queued while they are open (FetchTime::kAtClose): what
// an op allocates comes before what others need later.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "support/plan_cursor_fixture.h"

namespace tencache {
namespace {

class QueuedOpsTest : public PlanCursorFixture {
 protected:
  QueuedOpsTest() {
    cursor_ = std::make_unique<PlanCursor>(static_cast<PlanSink&>(*this), FetchTime::kAtClose);
  }
  /// Installs the plan; the cursor then follows it, at the start of its period.
  void follow(const std::shared_ptr<const LearnedPlan>& plan) {
    plan_ = plan;
    cursor_->install({plan});
    play_step();
    fetched_.clear();
  }
  std::span<const uint32_t> fetches_at(Tick tick) const { return plan_->moves.fetches_at.at(tick); }
  /// Plays from `tick` to the next tick that requests fetches, whose op it leaves open.
  Tick open_next_with_fetches(Tick tick) {
    for (; fetches_at(tick).empty(); ++tick) play(tick);
    fetched_.clear();
    open(tick);
    return tick;
  }

  std::shared_ptr<const LearnedPlan> plan_;
};

TEST_F(QueuedOpsTest, FetchesWaitForTheClose) {
  follow(learned(1));
  for (Tick tick = 0; tick < 2 * kLayers; ++tick) {
    const size_t before = fetched_.size();
    open(tick);
    EXPECT_EQ(fetched_.size(), before);
    cursor_->on_outermost_close();
    EXPECT_EQ(fetched_.size(), before + fetches_at(tick).size());
  }
  EXPECT_FALSE(fetched_.empty());
}

TEST_F(QueuedOpsTest, FetchesOfAnOpAroundOthersAreGivenWhenTheNextOpens) {
  follow(learned(1));
  size_t requested = 0;
  for (Tick tick = 0; tick < 2 * kLayers; ++tick) {
    open(tick);
    EXPECT_EQ(fetched_.size(), requested);
    requested += fetches_at(tick).size();
  }
  EXPECT_GT(requested, 0u);
}

TEST_F(QueuedOpsTest, FetchesWaitForTheThreadOfTheirOp) {
  follow(learned(1));
  open_next_with_fetches(0);
  std::thread([this] { cursor_->on_outermost_close(); }).join();
  EXPECT_TRUE(fetched_.empty());
  cursor_->on_outermost_close();
  EXPECT_FALSE(fetched_.empty());
}

// A fetch that was held back is dated anew when it is handed out. That calls off the evictions that
// were requested meanwhile. If its extent was used meanwhile, the fetch keeps its date and is
// outdated.
TEST_F(QueuedOpsTest, FetchesAreDatedWhenTheyAreGiven) {
  follow(learned(1));
  Tick tick = 0;
  for (const bool is_used : {false, true}) {
    tick = open_next_with_fetches(tick);
    const uint64_t opened_at = timestamp();
    if (is_used) extents_[fetches_at(tick).front()].last_use_at = opened_at;
    cursor_->on_outermost_close();
    EXPECT_EQ(fetched_.at(0).given_at < opened_at, is_used);
    ++tick;
  }
}

// An op needs what it names before it allocates.
TEST_F(QueuedOpsTest, WhatTheOpItselfNeedsIsRequestedWhenItOpens) {
  std::vector<std::pair<Tick, uint32_t>> fetches;
  for (Tick tick = 0; tick < 2 * kLayers; ++tick) {
    fetches.emplace_back(tick, static_cast<uint32_t>(layer_of(tick)));
  }
  auto at_once = std::make_shared<LearnedPlan>(*learned(1));
  at_once->moves.fetches_at = TensorsByTick(2 * kLayers, fetches);
  follow(at_once);
  for (size_t tick = 0; tick < 2 * kLayers; ++tick) {
    open(tick);
    EXPECT_EQ(fetched_.size(), tick + 1);
    cursor_->on_outermost_close();
  }
  EXPECT_EQ(fetched_.size(), 2 * kLayers);
}

TEST_F(QueuedOpsTest, FetchesThatWaitAreForgottenWithThePlace) {
  follow(learned(1));
  open_next_with_fetches(0);
  std::thread([this] {
    for (int step = 0; step < 3; ++step) play_step(7);
  }).join();
  ASSERT_FALSE(is_following());
  cursor_->on_outermost_close();
  EXPECT_TRUE(fetched_.empty());
}

}  // namespace
}  // namespace tencache
