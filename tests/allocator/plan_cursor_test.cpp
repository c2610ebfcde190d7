// SPDX-License-Identifier: Apache-2.0
//
// Following plans: requests at the right ticks and for the right extents, extra and missing ticks,
// other programs, finding the place again, changing plans while one is followed.
#include "engine/plan/plan_cursor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "learn/tick_digest.h"
#include "support/plan_cursor_fixture.h"
#include "support/random.h"
#include "support/random_trace.h"
#include "support/stored_period.h"

namespace tencache {
namespace {

using PlanCursorTest = PlanCursorFixture;
using ::testing::ElementsAreArray;
using ::testing::IsSupersetOf;

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
  play_step_in_one_op();
  EXPECT_TRUE(evicted_.empty());
  cursor_->on_outermost_close();
  EXPECT_FALSE(evicted_.empty());
}

// What another thread closes meanwhile leaves the extents of an open op pinned.
TEST_F(PlanCursorTest, EvictionsWaitForTheThreadOfTheirOp) {
  cursor_->install({learned(1)});
  play_step();
  evicted_.clear();
  play_step_in_one_op();
  std::thread([this] { cursor_->on_outermost_close(); }).join();
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
  EXPECT_EQ(cursor_->following().kind, 1u);
  play_step(50);
  play_step(50);
  EXPECT_EQ(cursor_->following().kind, 2u);
  play_step();
  play_step();
  EXPECT_EQ(cursor_->following().kind, 1u);
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

// The new plan requests the evictions that it would have requested by now.
TEST_F(PlanCursorTest, APlanThatTakesOverCatchesUp) {
  const std::shared_ptr<const LearnedPlan> roomy = learned(1, 1, 2 * kLayers * kBytes);
  ASSERT_TRUE(roomy->planned.plan.moves.empty());
  const std::shared_ptr<const LearnedPlan> tight = learned(1);
  std::vector<uint64_t> away;
  for (const PlannedMove& move : tight->planned.plan.moves) {
    const bool has_left = move.evict_after < kLayers && move.fetch_at > kLayers + 1;
    if (move.fetch_at != kNoTick && has_left) away.push_back(move.tensor + 1);
  }
  ASSERT_FALSE(away.empty());
  cursor_->install({roomy});
  play_step();
  for (size_t tick = 0; tick < kLayers; ++tick) play(tick);
  EXPECT_TRUE(evicted_.empty());
  cursor_->install({tight});
  play(kLayers);
  std::vector<uint64_t> evicted;
  for (const MoveRequest& request : evicted_) evicted.push_back(request.extent_id);
  EXPECT_THAT(evicted, IsSupersetOf(away));
}

// Of several that leave after one tick, the plan may count on the room of the first.
TEST_F(PlanCursorTest, EvictionsKeepTheOrderOfThePlan) {
  size_t others = 0;  // that leave in another order than they come back
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    auto period = std::make_shared<Period>();
    period->trace = random_trace(random, {.ops = 12, .tensors = 16});
    period->extent_ids.resize(period->trace.tensors.size());
    const auto followed = make_learned_plan(1, period, byte_per_ns(40));
    for (Tick tick = 0; tick < followed->tick_count(); ++tick) {
      std::vector<uint32_t> planned;
      std::vector<Tick> leads;
      for (const PlannedMove& move : followed->planned.plan.moves) {
        if (move.evict_after != tick) continue;
        planned.push_back(move.tensor);
        const Tick count = followed->tick_count();
        leads.push_back((move.needed_at + count - move.fetch_at) % count);
      }
      EXPECT_THAT(followed->moves.evictions_after.at(tick), ElementsAreArray(planned));
      others += std::ranges::is_sorted(leads) ? 0 : 1;
    }
  }
  EXPECT_GT(others, 0u);
}

// Whatever came before has left parameters cold that the plan does not expect to be. They are
// fetched in the sequence of their use, and known before they are named.
TEST_F(PlanCursorTest, FetchesWhatIsColdWhenItFindsItsPlace) {
  const std::shared_ptr<const LearnedPlan> followed = learned(1);
  std::vector<ListedExtent> listed;
  for (Extent& extent : extents_) listed.push_back({&extent, nullptr, extent.bytes});
  cursor_->install({followed}, listed);
  for (size_t tick = 0; tick < 4; ++tick) play(tick);
  ASSERT_TRUE(is_following());
  ASSERT_GE(fetched_.size(), 2u);
  EXPECT_EQ(fetched_[0].extent_id, 5u) << "the next one";
  EXPECT_TRUE(std::ranges::is_sorted(fetched_, {}, [](const MoveRequest& request) {
    const uint64_t layer = request.extent_id - 1;
    return layer >= 4 ? layer : 2 * kLayers - 1 - layer;
  }));
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

// What is freed makes room in a moment, so it leaves last.
TEST_F(PlanCursorTest, WhatTheOpenOpFreesIsNeededAtOnce) {
  auto period = std::make_shared<Period>();
  period->trace.op_names = {"op"};
  period->trace.tensors = {{kBytes, 1, 3}};
  period->extent_ids = {0};
  for (Tick tick = 0; tick < 5; ++tick) {
    period->trace.ops.push_back({0, 1'000'000, {}});
    period->digests.push_back(tick);
  }
  for (const Tick tick : {1, 2}) period->trace.ops[tick].accesses = {{0, tick == 1}};
  Machine machine;
  machine.budget_bytes = kBytes;
  machine.read_bytes_per_s = machine.write_bytes_per_s = 10e9;
  const std::shared_ptr<const LearnedPlan> plan = make_learned_plan(1, std::move(period), machine);
  EXPECT_EQ(plan->ticks_to_next_use(0, 2), 0u);
  EXPECT_EQ(plan->ticks_to_next_use(0, 3), 1u) << "freed by op 3, after op 2";
  EXPECT_EQ(plan->ticks_to_next_use(0, 4), 0u) << "op 3 may be open still";
}

/// A step of layers, each with a parameter, and an activation that the forward pass makes and the
/// backward pass frees.
class PlanSizesTest : public PlanCursorTest {
 protected:
  std::shared_ptr<const LearnedPlan> plan_for(uint64_t activation_bytes) const {
    auto period = std::make_shared<Period>();
    period->trace.op_names = {"op"};
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      period->trace.tensors.push_back({kBytes, kNoTick, kNoTick});
      period->extent_ids.push_back(layer + 1);
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const auto freed_at = static_cast<Tick>(2 * kLayers - 1 - layer);
      period->trace.tensors.push_back({activation_bytes, layer, freed_at});
      period->extent_ids.push_back(0);
    }
    for (size_t tick = 0; tick < 2 * kLayers; ++tick) {
      TraceOp op{0, 1'000'000, {}};
      for (const uint32_t tensor : tensors_at(tick)) op.accesses.push_back({tensor, false});
      period->trace.ops.push_back(op);
      period->digests.push_back(sizes_digest(tick));
    }
    period->born_bytes = kLayers * activation_bytes;
    Machine machine;
    machine.budget_bytes = 12 * kBytes;
    machine.read_bytes_per_s = machine.write_bytes_per_s = 10e9;
    return make_learned_plan(1, std::move(period), machine);
  }
  // In the forward pass, a layer names its parameter and the activation of the layer before. In the
  // backward pass, it names its parameter and its own activation.
  static std::vector<uint32_t> tensors_at(size_t tick) {
    const auto layer = static_cast<uint32_t>(layer_of(tick));
    std::vector<uint32_t> tensors = {layer};
    if (tick < kLayers && layer > 0) tensors.push_back(kLayers + layer - 1);
    if (tick >= kLayers) tensors.push_back(kLayers + layer);
    return tensors;
  }
  static uint64_t sizes_digest(size_t tick) {
    TickDigest value(tick < kLayers ? 1 : 2);
    for (size_t count = tensors_at(tick).size(); count > 0; --count) value.add(false);
    return value.value();
  }
  void play_with(uint64_t activation_bytes) {
    for (Extent& activation : activations_) {
      activation.id = ++last_id_;
      activation.bytes = activation_bytes;
    }
    for (size_t tick = 0; tick < 2 * kLayers; ++tick) {
      std::vector<Extent*> named;
      for (const uint32_t tensor : tensors_at(tick)) {
        named.push_back(tensor < kLayers ? &extents_[tensor] : &activations_[tensor - kLayers]);
      }
      cursor_->on_tick(sizes_digest(tick), named);
      cursor_->on_outermost_close();
    }
  }

  std::array<Extent, kLayers> activations_;
  uint64_t last_id_ = 100;
};

TEST_F(PlanSizesTest, AStepOfAnotherSizeIsFollowed) {
  cursor_->install({plan_for(2 * kBytes)});
  play_with(2 * kBytes);
  const uint64_t followed = cursor_->following().ticks_followed;
  evicted_.clear();
  play_with(3 * kBytes);
  EXPECT_EQ(cursor_->following().ticks_followed, followed + 2 * kLayers);
  EXPECT_EQ(cursor_->following().lost, 0u);
  bool has_activation = false;
  for (const MoveRequest& request : evicted_) {
    EXPECT_EQ(request.bytes, request.extent->bytes) << "today's bytes";
    has_activation |= request.extent_id > 100;
  }
  EXPECT_TRUE(has_activation);
}

TEST_F(PlanSizesTest, TheFollowedPlanStaysWhenTheKindGetsAnother) {
  const auto small = plan_for(kBytes / 4);
  const auto large = plan_for(3 * kBytes);
  const auto requests_after = [&](const LearnedKind& kind) {
    play_with(3 * kBytes);
    play_with(3 * kBytes);
    evicted_.clear();
    cursor_->install({kind});
    cursor_->on_tick(sizes_digest(0), std::vector<Extent*>{&extents_[0]});
    cursor_->on_outermost_close();
    std::vector<uint64_t> ids;
    for (const MoveRequest& request : evicted_) ids.push_back(request.extent_id);
    return ids;
  };
  LearnedKind kind(small);
  kind.take(large);
  cursor_->install({kind});
  const std::vector<uint64_t> ids = requests_after(kind);
  ASSERT_FALSE(ids.empty());
  kind.take(plan_for(kBytes));
  ASSERT_EQ(kind.plans.size(), 3u);
  EXPECT_EQ(requests_after(kind), ids);
}

TEST_F(PlanSizesTest, ThePlanThatFitsTodaysSizesIsFollowed) {
  LearnedKind kind;
  kind.plans = {plan_for(kBytes / 4), plan_for(4 * kBytes)};
  const auto returning = [](const LearnedPlan& plan) {
    return std::ranges::count_if(plan.planned.plan.moves,
                                 [](const PlannedMove& move) { return move.fetch_at != kNoTick; });
  };
  ASSERT_EQ(returning(*kind.plans[0]), 0) << "everything fits";
  ASSERT_GT(returning(*kind.plans[1]), 0);
  cursor_->install({kind});
  for (int round = 0; round < 3; ++round) {
    play_with(kBytes / 4);
    play_with(kBytes / 4);
    evicted_.clear();
    play_with(kBytes / 4);
    EXPECT_TRUE(evicted_.empty()) << "round " << round;
    EXPECT_EQ(cursor_->following().last_period_born_bytes, kind.plans[0]->period->born_bytes);
    const size_t timed = cursor_->following().last_times.count();
    EXPECT_GE(timed, 1u);
    EXPECT_LE(timed, 3u) << "those of the other sizes are forgotten";
    play_with(4 * kBytes);
    evicted_.clear();
    play_with(4 * kBytes);
    EXPECT_FALSE(evicted_.empty()) << "round " << round;
    EXPECT_EQ(cursor_->following().last_period_born_bytes, kind.plans[1]->period->born_bytes);
  }
  EXPECT_EQ(cursor_->following().lost, 0u);
}

/// Passes over some parameters, and what comes after them: a plan with three passes is followed
/// whether there are fewer or more.
class PlanLoopTest : public PlanCursorTest {
 protected:
  static constexpr size_t kPasses = 3;
  static constexpr size_t kTail = 4;

  std::shared_ptr<const LearnedPlan> looping() const {
    auto period = std::make_shared<Period>();
    period->trace.op_names = {"op"};
    for (size_t index = 0; index < kLayers; ++index) {
      period->trace.tensors.push_back({kBytes, kNoTick, kNoTick});
      period->extent_ids.push_back(index + 1);
    }
    const auto add = [&](uint32_t tensor, uint32_t op) {
      TickDigest value(op);
      value.add(false);
      period->trace.ops.push_back({0, 1'000'000, {{tensor, false}}});
      period->digests.push_back(value.value());
    };
    for (size_t pass = 0; pass < kPasses; ++pass) {
      for (uint32_t tensor = 0; tensor < kLayers; ++tensor) add(tensor, 1);
      for (uint32_t tensor = kLayers; tensor-- > 0;) add(tensor, 2);
    }
    for (uint32_t tensor = 0; tensor < kTail; ++tensor) add(tensor, 3);
    Machine machine;
    machine.budget_bytes = 5 * kBytes;
    machine.read_bytes_per_s = machine.write_bytes_per_s = 10e9;
    return make_learned_plan(1, std::move(period), machine);
  }
  void play_op(uint32_t op, size_t tensor) {
    TickDigest value(op);
    value.add(false);
    Extent* extent = &extents_[tensor];
    cursor_->on_tick(value.value(), std::span(&extent, 1));
    cursor_->on_outermost_close();
  }
  uint64_t followed_in_step(size_t passes) {
    const uint64_t before = cursor_->following().ticks_followed;
    for (size_t pass = 0; pass < passes; ++pass) {
      for (size_t tensor = 0; tensor < kLayers; ++tensor) play_op(1, tensor);
      for (size_t tensor = kLayers; tensor-- > 0;) play_op(2, tensor);
    }
    for (size_t tensor = 0; tensor < kTail; ++tensor) play_op(3, tensor);
    return cursor_->following().ticks_followed - before;
  }
};

TEST_F(PlanLoopTest, PassesMayBeMoreOrFewer) {
  cursor_->install({looping()});
  followed_in_step(kPasses);
  EXPECT_EQ(followed_in_step(kPasses), kPasses * 2 * kLayers + kTail);
  for (const size_t passes : {5, 1, 2, 7, 3}) {
    const uint64_t ticks = passes * 2 * kLayers + kTail;
    EXPECT_GE(followed_in_step(passes) + 16, ticks) << passes << " passes";
  }
  EXPECT_EQ(cursor_->following().lost, 0u);
}

/// A step whose list op updates four tensors a chunk. Afterwards another op reads each tensor.
class PlanChunkTest : public PlanCursorTest {
 protected:
  static constexpr size_t kTensors = 40;

  PlanChunkTest() {
    for (size_t index = 0; index < kTensors; ++index) {
      tensors_[index].id = index + 1;
      tensors_[index].bytes = kBytes;
      tensors_[index].commit();
    }
  }
  static uint64_t digest_of(uint32_t op, size_t count) {
    TickDigest value(op);
    while (count-- > 0) value.add(false);
    return value.value();
  }
  static Period chunked() {
    Period period;
    period.trace.op_names = {"update", "read"};
    const auto add = [&](uint32_t name, uint32_t first, uint32_t count) {
      TraceOp op{name, 1'000'000, {}};
      for (uint32_t tensor = first; tensor < first + count; ++tensor) {
        op.accesses.push_back({tensor, false});
      }
      period.trace.ops.push_back(std::move(op));
      period.digests.push_back(digest_of(name + 1, count));
    };
    for (uint32_t first = 0; first < kTensors; first += 4) add(0, first, 4);
    for (uint32_t tensor = 0; tensor < kTensors; ++tensor) add(1, tensor, 1);
    for (size_t index = 0; index < kTensors; ++index) {
      period.trace.tensors.push_back({kBytes, kNoTick, kNoTick});
      period.extent_ids.push_back(index + 1);
    }
    return period;
  }
  static std::shared_ptr<const LearnedPlan> plan_of(Period period) {
    Machine machine;
    machine.budget_bytes = kTensors / 2 * kBytes;
    machine.read_bytes_per_s = machine.write_bytes_per_s = 10e9;
    return make_learned_plan(1, std::make_shared<const Period>(std::move(period)), machine);
  }
  void play_tick(uint32_t op, const std::vector<size_t>& named, bool is_chunk) {
    std::vector<Extent*> extents;
    for (const size_t index : named) extents.push_back(&tensors_[index]);
    cursor_->on_tick(digest_of(op, named.size()), extents, is_chunk);
    cursor_->on_outermost_close();
  }
  /// Plays the update without the tensor `left_out`, so that all later chunks begin one tensor
  /// later.
  void play_update(size_t left_out) {
    std::vector<size_t> chunk;
    for (size_t index = 0; index < kTensors; ++index) {
      if (index != left_out) chunk.push_back(index);
      if (chunk.size() < 4 && index + 1 < kTensors) continue;
      play_tick(1, chunk, true);
      chunk.clear();
    }
  }
  void play_reads() {
    for (size_t index = 0; index < kTensors; ++index) play_tick(2, {index}, false);
  }

  void expect_that_chunks_may_be_cut_elsewhere(Period period) {
    cursor_->install({plan_of(std::move(period))});
    for (int step = 0; step < 2; ++step) {
      play_update(kTensors);
      play_reads();
    }
    for (const size_t left_out : {size_t{1}, size_t{17}, size_t{0}}) {
      const Following before = cursor_->following();
      play_update(left_out);
      // Nearly all chunks were foreseen, and the cursor has come to the last.
      EXPECT_LE(cursor_->next_uses().at(&tensors_[0]), 2u) << "without " << left_out;
      play_reads();
      const Following after = cursor_->following();
      EXPECT_EQ(after.ticks_followed - before.ticks_followed, kTensors / 4 + kTensors);
      EXPECT_EQ(after.lost, 0u);
      EXPECT_EQ(after.periods, before.periods + 1);
    }
  }

  std::array<Extent, kTensors> tensors_;
};

TEST_F(PlanChunkTest, ChunksMayBeCutElsewhere) {
  expect_that_chunks_may_be_cut_elsewhere(chunked());
}

TEST_F(PlanChunkTest, ChunksOfAStoredPeriodMayBeCutElsewhere) {
  expect_that_chunks_may_be_cut_elsewhere(as_stored(chunked()));
}

TEST_F(PlanCursorTest, ARowOfMissingTicksIsPassedOver) {
  cursor_->install({learned(1)});
  play_step();
  for (const size_t tick : {0, 1, 2, 13, 14, 15}) play(tick);
  EXPECT_EQ(cursor_->following().lost, 0u);
  play_step();
  EXPECT_TRUE(is_following());
}

// The eviction would come after the fetch, which finds the tensor on the device.
TEST_F(PlanCursorTest, WhatLeavesAndReturnsInMissingTicksStays) {
  auto changed = std::make_shared<LearnedPlan>(*learned(1));
  const auto move = [](uint32_t tensor, Tick evict_after, Tick fetch_at) {
    PlannedMove made;
    made.tensor = tensor;
    made.evict_after = evict_after;
    made.fetch_at = fetch_at;
    made.needed_at = static_cast<Tick>(2 * kLayers - 1 - tensor);
    return made;
  };
  // The last move fetches in tick 13, the first tick after the missing ones.
  changed->planned.plan.moves = {move(3, 4, 8), move(5, 6, 14), move(2, 5, 13)};
  changed->moves = PlanByTick(changed->planned.plan, changed->tick_count());
  const std::shared_ptr<const LearnedPlan> followed = changed;
  cursor_->install({followed});
  play_step();
  play_step();
  evicted_.clear();
  for (const size_t tick : {0, 1, 2, 13, 14, 15}) play(tick);
  ASSERT_EQ(evicted_.size(), 1u);
  EXPECT_EQ(evicted_.front().extent_id, 6u);
}

TEST_F(PlanCursorTest, ARowOfExtraTicksIsPassedOver) {
  cursor_->install({learned(1)});
  play_step();
  for (size_t tick = 0; tick < 5; ++tick) play(tick);
  for (int count = 0; count < 20; ++count) play(3, 70);
  const uint64_t followed = cursor_->following().ticks_followed;
  for (size_t tick = 5; tick < 2 * kLayers; ++tick) play(tick);
  EXPECT_EQ(cursor_->following().ticks_followed, followed + 2 * kLayers - 5);
  EXPECT_EQ(cursor_->following().lost, 0u);
}

}  // namespace
}  // namespace tencache
