// SPDX-License-Identifier: Apache-2.0
//
// Following a period that an earlier run has stored: from the first tick on, although layers look
// alike and the first step makes the optimizer's state; wrong places; other programs; and the
// moment at which the program's own period takes over.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "engine/plan/plan_cursor.h"
#include "learn/tick_digest.h"
#include "support/stored_period.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr uint32_t kLayers = 8;
constexpr uint64_t kTicks = 3 * kLayers;

/// A step that reads all parameters forwards and backwards, then updates them with their states. No
/// op or size tells one layer from another. The machine holds half of the parameters and states.
class StoredPlanTest : public ::testing::Test, protected PlanSink {
 protected:
  StoredPlanTest() {
    for (uint32_t layer = 0; layer < kLayers; ++layer) parameters_.push_back(make());
    cursor_ = std::make_unique<PlanCursor>(static_cast<PlanSink&>(*this));
    cursor_->install({plan_of(as_stored(*period_with({})))});
  }

  void evict(std::span<const MoveRequest> requests) override {
    for (const MoveRequest& request : requests) evicted_.insert(request.extent_id);
  }
  void fetch(std::span<const MoveRequest> requests) override {
    for (const MoveRequest& request : requests) fetched_.insert(request.extent_id);
  }
  void forget_fetches() override {}
  void on_period() override { ++periods_; }

  /// Returns the period of the step. `ids` holds the ids of the parameters and then of the states;
  /// where it is empty, they are numbers from 1 on.
  static std::shared_ptr<Period> period_with(const std::vector<uint64_t>& ids) {
    auto period = std::make_shared<Period>();
    period->trace.op_names = {"op"};
    for (uint32_t tensor = 0; tensor < 2 * kLayers; ++tensor) {
      period->trace.tensors.push_back({kBytes, kNoTick, kNoTick});
      period->extent_ids.push_back(ids.empty() ? tensor + 1 : ids[tensor]);
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) add_tick(period.get(), 1, {layer}, false);
    for (uint32_t layer = kLayers; layer-- > 0;) add_tick(period.get(), 2, {layer}, false);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      add_tick(period.get(), 3, {layer, kLayers + layer}, true);
    }
    return period;
  }
  static void add_tick(Period* period, uint32_t op, const std::vector<uint32_t>& tensors,
                       bool is_write) {
    TraceOp trace_op{0, 1'000'000, {}};
    for (const uint32_t tensor : tensors) trace_op.accesses.push_back({tensor, is_write});
    period->trace.ops.push_back(trace_op);
    period->digests.push_back(digest(op, tensors.size(), is_write));
  }
  static uint64_t digest(uint32_t op, size_t count, bool is_write) {
    TickDigest value(op);
    for (size_t index = 0; index < count; ++index) value.add(is_write);
    return value.value();
  }
  static std::shared_ptr<const LearnedPlan> plan_of(Period period) {
    Machine machine;
    machine.budget_bytes = kLayers * kBytes;
    machine.read_bytes_per_s = machine.write_bytes_per_s = 10e9;
    return make_learned_plan(1, std::make_shared<const Period>(std::move(period)), machine);
  }

  Extent* make(uint64_t bytes = kBytes) {
    Extent& extent = extents_.emplace_back();
    extent.id = 1000 + extents_.size();
    extent.bytes = bytes;
    extent.commit();
    return &extent;
  }
  void play(uint32_t op, const std::vector<Extent*>& extents, bool is_write = false) {
    cursor_->on_tick(digest(op, extents.size(), is_write), extents);
    cursor_->on_outermost_close();
  }
  void play_step() {
    for (Extent* parameter : parameters_) play(1, {parameter});
    for (uint32_t layer = kLayers; layer-- > 0;) play(2, {parameters_[layer]});
    const bool is_first = states_.empty();
    for (uint32_t layer = 0; is_first && layer < kLayers; ++layer) {
      states_.push_back(make());
      for (uint32_t op = 11; op < 16; ++op) play(op, {states_.back()}, true);
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      play(3, {parameters_[layer], states_[layer]}, true);
    }
  }
  std::vector<uint64_t> own_ids() const {
    std::vector<uint64_t> ids;
    for (const Extent* extent : parameters_) ids.push_back(extent->id);
    for (const Extent* extent : states_) ids.push_back(extent->id);
    return ids;
  }

  std::deque<Extent> extents_;
  std::vector<Extent*> parameters_;
  std::vector<Extent*> states_;
  std::set<uint64_t> evicted_;  // extents
  std::set<uint64_t> fetched_;
  int periods_ = 0;
  std::unique_ptr<PlanCursor> cursor_;
};

TEST_F(StoredPlanTest, IsFollowedFromTheBeginOfTheFirstStep) {
  play_step();
  Following following = cursor_->following();
  EXPECT_EQ(following.stored_ticks_followed, kTicks - 3) << "four ticks tell the place";
  EXPECT_EQ(following.lost, 0u) << "the state that is made is passed over";
  EXPECT_EQ(cursor_->found_extents(1), own_ids());
  EXPECT_FALSE(evicted_.empty());
  play_step();
  play_step();
  following = cursor_->following();
  EXPECT_EQ(following.stored_ticks_followed, 3 * kTicks - 3);
  EXPECT_EQ(following.periods, 2u);
  EXPECT_FALSE(fetched_.empty());
  for (const uint64_t id : fetched_) EXPECT_TRUE(std::ranges::count(own_ids(), id) == 1) << id;
}

TEST_F(StoredPlanTest, TensorsOfOtherSizesAreAnotherProgram) {
  for (Extent*& parameter : parameters_) parameter = make(2 * kBytes);
  play_step();
  play_step();
  EXPECT_EQ(cursor_->following().ticks_followed, 0u);
  EXPECT_EQ(cursor_->found_extents(1), plan_of(as_stored(*period_with({})))->period->extent_ids);
  EXPECT_TRUE(evicted_.empty());
}

// A plan that comes late finds the program among layers that look alike. They are not taken for
// those at the start.
TEST_F(StoredPlanTest, APlanThatComesLateIsFollowedFromTheNextUniquePlace) {
  cursor_->install({});
  cursor_->expect_plan();
  for (uint32_t layer = 0; layer < 2; ++layer) play(1, {parameters_[layer]});
  cursor_->install({plan_of(as_stored(*period_with({})))});
  for (uint32_t layer = 2; layer < kLayers; ++layer) play(1, {parameters_[layer]});
  EXPECT_EQ(cursor_->following().stored_ticks_followed, 0u);
  for (uint32_t layer = kLayers; layer-- > 0;) play(2, {parameters_[layer]});
  EXPECT_GT(cursor_->following().stored_ticks_followed, kLayers / 2);
  const std::vector<uint64_t> found = cursor_->found_extents(1);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(found[layer], parameters_[layer]->id);
  }
}

// What comes before the first step looks like its start for a moment, with other tensors.
TEST_F(StoredPlanTest, AWrongBeginIsForgotten) {
  for (uint32_t layer = 4; layer < kLayers; ++layer) play(1, {parameters_[layer]});
  EXPECT_GT(cursor_->following().stored_ticks_followed, 0u);
  for (uint32_t count = 0; count < 60; ++count) play(70 + count, {parameters_[count % kLayers]});
  EXPECT_EQ(cursor_->following().kind, 0u);
  const uint64_t followed = cursor_->following().stored_ticks_followed;
  play_step();
  EXPECT_EQ(cursor_->following().stored_ticks_followed, followed + kTicks - 3);
  EXPECT_EQ(cursor_->found_extents(1), own_ids());
}

TEST_F(StoredPlanTest, TheProgramsOwnPeriodTakesOver) {
  play_step();
  const uint64_t stored_ticks = cursor_->following().stored_ticks_followed;
  cursor_->install({plan_of(*period_with(own_ids()))});
  EXPECT_TRUE(cursor_->found_extents(1).empty());
  play_step();
  EXPECT_EQ(cursor_->following().stored_ticks_followed, stored_ticks);
  EXPECT_EQ(cursor_->following().ticks_followed, stored_ticks + kTicks);
  EXPECT_EQ(cursor_->following().lost, 0u);
}

TEST_F(StoredPlanTest, WhatWasFoundSurvivesAnotherInstallation) {
  for (Extent* parameter : parameters_) play(1, {parameter});
  const std::vector<uint64_t> found = cursor_->found_extents(1);
  EXPECT_EQ(found[0], parameters_[0]->id);
  EXPECT_EQ(found[kLayers], kUnknownExtent);
  cursor_->install({plan_of(as_stored(*period_with({})))});
  EXPECT_EQ(cursor_->found_extents(1), found);
  EXPECT_EQ(cursor_->following().kind, 1u);
}

}  // namespace
}  // namespace tencache
