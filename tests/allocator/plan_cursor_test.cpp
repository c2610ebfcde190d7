// SPDX-License-Identifier: Apache-2.0
//
// Following plans: requests at the right ticks and for the right extents, extra and missing ticks,
// other programs, finding the place again, changing plans while one is followed.
#include "engine/plan/plan_cursor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "learn/tick_digest.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr size_t kLayers = 8;

/// A step that reads eight parameters forwards and backwards, and a machine that holds five.
class PlanCursorTest : public ::testing::Test, protected PlanSink {
 protected:
  PlanCursorTest() {
    for (size_t index = 0; index < kLayers; ++index) {
      extents_[index].id = index + 1;
      extents_[index].bytes = kBytes;
    }
    cursor_ = std::make_unique<PlanCursor>(static_cast<PlanSink&>(*this));
  }

  void evict(std::span<const MoveRequest> requests) override {
    evicted_.insert(evicted_.end(), requests.begin(), requests.end());
  }
  void fetch(std::span<const MoveRequest> requests) override {
    fetched_.insert(fetched_.end(), requests.begin(), requests.end());
  }
  void forget_fetches() override { ++forgotten_; }
  void on_period() override { ++periods_; }

  // Ticks of a step: op 1 on each parameter, then op 2 in reverse order.
  std::shared_ptr<const LearnedPlan> learned(uint64_t number, uint32_t first_op = 1) const {
    auto period = std::make_shared<Period>();
    period->trace.op_names = {"op"};
    for (size_t tick = 0; tick < 2 * kLayers; ++tick) {
      const auto tensor = static_cast<uint32_t>(layer_of(tick));
      period->trace.ops.push_back({0, 1'000'000, {{tensor, false}}});
      period->digests.push_back(digest(tick, first_op));
    }
    for (size_t index = 0; index < kLayers; ++index) {
      period->trace.tensors.push_back({kBytes, kNoTick, kNoTick});
      period->extent_ids.push_back(index + 1);
    }
    Machine machine;
    machine.budget_bytes = 5 * kBytes;
    machine.read_bytes_per_s = machine.write_bytes_per_s = 10e9;
    return make_learned_plan(number, std::move(period), machine);
  }

  static size_t layer_of(size_t tick) { return tick < kLayers ? tick : 2 * kLayers - 1 - tick; }
  static uint64_t digest(size_t tick, uint32_t first_op = 1) {
    TickDigest value(first_op + (tick < kLayers ? 0 : 1));
    value.add(kBytes, false);
    return value.value();
  }

  void play(size_t tick, uint32_t first_op = 1) {
    Extent* extent = &extents_[layer_of(tick)];
    cursor_->on_tick(digest(tick, first_op), std::span(&extent, 1));
    cursor_->on_outermost_close();
  }
  void play_step(uint32_t first_op = 1) {
    for (size_t tick = 0; tick < 2 * kLayers; ++tick) play(tick, first_op);
  }
  bool is_following() const { return cursor_->following().plan_number != 0; }

  std::array<Extent, kLayers> extents_;
  std::vector<MoveRequest> evicted_;
  std::vector<MoveRequest> fetched_;
  int forgotten_ = 0;
  int periods_ = 0;
  std::unique_ptr<PlanCursor> cursor_;
};

TEST_F(PlanCursorTest, IsIdleWithoutPlans) {
  EXPECT_FALSE(cursor_->is_active());
  cursor_->install({learned(1)});
  EXPECT_TRUE(cursor_->is_active());
  EXPECT_FALSE(is_following()) << "it does not know yet where the program is";
}

TEST_F(PlanCursorTest, GivesTheRequestsOfItsPlan) {
  const std::shared_ptr<const LearnedPlan> followed = learned(1);
  ASSERT_FALSE(followed->planned.plan.moves.empty());
  cursor_->install({followed});
  play_step();
  EXPECT_TRUE(is_following());
  evicted_.clear();
  fetched_.clear();
  play_step();
  size_t returning = 0;
  for (const PlannedMove& move : followed->planned.plan.moves) {
    returning += move.fetch_at != kNoTick ? 1 : 0;
  }
  EXPECT_EQ(evicted_.size(), followed->planned.plan.moves.size());
  EXPECT_EQ(fetched_.size(), returning);
  for (const MoveRequest& request : evicted_) EXPECT_TRUE(request.is_current());
  EXPECT_GE(periods_, 1);
}

TEST_F(PlanCursorTest, EvictionsWaitForTheOutermostClose) {
  const std::shared_ptr<const LearnedPlan> followed = learned(1);
  cursor_->install({followed});
  play_step();
  evicted_.clear();
  for (size_t tick = 0; tick < 2 * kLayers; ++tick) {
    Extent* extent = &extents_[layer_of(tick)];
    cursor_->on_tick(digest(tick), std::span(&extent, 1));
  }
  EXPECT_TRUE(evicted_.empty());
  cursor_->on_outermost_close();
  EXPECT_FALSE(evicted_.empty());
}

TEST_F(PlanCursorTest, PassesOverTicksTooManyAndTooFew) {
  cursor_->install({learned(1)});
  play_step();
  play(0);
  play(0, 77);  // of another program
  play(1);
  play(4);  // two are missing
  EXPECT_TRUE(is_following());
  EXPECT_EQ(forgotten_, 0);
}

TEST_F(PlanCursorTest, GetsLostInAnotherProgramAndFindsItsPlaceAgain) {
  cursor_->install({learned(1)});
  play_step();
  play_step(50);
  play_step(50);
  EXPECT_FALSE(is_following());
  EXPECT_GE(forgotten_, 1);
  const uint64_t followed_then = cursor_->following().ticks_followed;
  play_step(50);
  EXPECT_EQ(cursor_->following().ticks_followed, followed_then)
      << "nothing is requested while lost";
  for (size_t tick = 5; tick < 2 * kLayers; ++tick) play(tick);
  EXPECT_TRUE(is_following()) << "in the middle of a period";
}

TEST_F(PlanCursorTest, TellsKindsApart) {
  cursor_->install({learned(1), learned(2, 50)});
  play_step();
  EXPECT_EQ(cursor_->following().plan_number, 1u);
  play_step(50);
  play_step(50);
  EXPECT_EQ(cursor_->following().plan_number, 2u);
  play_step();
  play_step();
  EXPECT_EQ(cursor_->following().plan_number, 1u);
}

TEST_F(PlanCursorTest, OtherExtentsInTheSamePlacesAreAnotherProgram) {
  cursor_->install({learned(1)});
  play_step();
  for (Extent& extent : extents_) extent.id = extent.id + 100;
  play_step();
  play_step();
  EXPECT_FALSE(is_following());
  EXPECT_TRUE(cursor_->next_uses().empty());
}

TEST_F(PlanCursorTest, ABetterPlanTakesOverWhileItIsFollowed) {
  cursor_->install({learned(1)});
  play_step();
  play(0);
  cursor_->install({learned(1)});
  EXPECT_TRUE(is_following());
  evicted_.clear();
  for (size_t tick = 1; tick < 2 * kLayers; ++tick) play(tick);
  EXPECT_FALSE(evicted_.empty()) << "it knows the extents from before";
}

TEST_F(PlanCursorTest, KnowsTheNextUses) {
  cursor_->install({learned(1)});
  play_step();
  for (size_t tick = 0; tick < 4; ++tick) play(tick);
  const auto uses = cursor_->next_uses();
  ASSERT_EQ(uses.size(), kLayers);
  EXPECT_EQ(uses.at(&extents_[4]), 0u) << "the very next";
  EXPECT_EQ(uses.at(&extents_[7]), 3u);
  EXPECT_EQ(uses.at(&extents_[0]), 11u);
}

}  // namespace
}  // namespace tencache
