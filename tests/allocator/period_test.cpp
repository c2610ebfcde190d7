// SPDX-License-Identifier: Apache-2.0
//
// Which repetitions make a period, and which tensors it has: parameters are known by their
// identity, activations by their place. Gradients may live across the end of a repetition. Layers
// that look alike are no repetitions where their parameters differ.
#include "learn/period.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "learn/period_builder.h"
#include "learn/period_search.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr uint32_t kForward = 1;
constexpr uint32_t kBackward = 2;
constexpr uint32_t kUpdate = 3;

/// A fixture that plays programs and writes their events into a log.
class PeriodTest : public ::testing::Test {
 protected:
  struct Use {
    uint64_t extent;
    bool is_write = false;
    uint64_t bytes = kBytes;
  };

  void op(uint32_t number, const std::vector<Use>& uses) {
    record({now_ += 1'000'000, 0, 0, number, EventKind::kOpBegin});
    for (const Use& use : uses) {
      record({now_, use.extent, use.bytes, number,
              use.is_write ? EventKind::kWrite : EventKind::kRead});
    }
  }
  uint64_t allocate(uint64_t bytes = kBytes) {
    record({now_ += 10, ++last_extent_, bytes, 0, EventKind::kAllocate});
    bytes_[last_extent_] = bytes;
    return last_extent_;
  }
  void free(uint64_t extent) { record({now_ += 10, extent, bytes_[extent], 0, EventKind::kFree}); }
  void wait(uint64_t ns) { record({now_ += 10, 0, ns, 0, EventKind::kWait}); }
  void mark() { record({now_ += 10, 0, 0, 0, EventKind::kStep}); }
  void flush() {
    log_.append({events_});
    events_.events.clear();
  }

  // Plays one step of a model whose layers have one parameter each. Activations die in the backward
  // pass; gradients are freed when the next step's backward pass begins.
  void train_step(const std::vector<uint64_t>& parameters, uint64_t batch_bytes = kBytes) {
    std::vector<uint64_t> activations;
    for (const uint64_t parameter : parameters) {
      op(kForward, {{parameter}});
      activations.push_back(allocate(batch_bytes));
    }
    for (const uint64_t gradient : gradients_) free(gradient);
    gradients_.clear();
    for (size_t layer = parameters.size(); layer-- > 0;) {
      op(kBackward, {{activations[layer], false, batch_bytes}, {parameters[layer]}});
      gradients_.push_back(allocate());
      free(activations[layer]);
    }
    for (size_t layer = 0; layer < parameters.size(); ++layer) {
      op(kUpdate, {{parameters[layer], true}, {gradients_[parameters.size() - 1 - layer]}});
    }
    mark();
  }

  std::optional<Period> build() {
    flush();
    return build_at(find_marked_period(log_));
  }
  std::optional<Period> build_from_one() {
    flush();
    return build_at(last_segment(log_));
  }
  std::vector<PeriodPlace> repeats(uint64_t since = 0) {
    flush();
    return find_repeats(log_, since, log_.end() - 1, std::max(since, log_.begin()));
  }

  uint64_t now_ = timestamp();
  uint64_t last_extent_ = 100;
  std::vector<uint64_t> gradients_;
  std::map<uint64_t, uint64_t> bytes_;  // by extent
  Recorder recorder_;
  TickLog log_;

 private:
  std::optional<Period> build_at(const std::optional<PeriodPlace>& place) {
    return place ? build_period(log_, *place, recorder_) : std::nullopt;
  }
  void record(const Event& event) { events_.events.push_back(event); }
  ThreadEvents events_;
};

TEST_F(PeriodTest, TwoEqualStepsAreAPeriod) {
  const std::vector<uint64_t> parameters = {1, 2, 3};
  for (int step = 0; step < 3; ++step) train_step(parameters);
  const std::optional<Period> period = build();
  ASSERT_TRUE(period.has_value());
  EXPECT_EQ(period->trace.tick_count(), 9u);
  ASSERT_TRUE(period->trace.validate().is_ok()) << period->trace.validate().message();
  EXPECT_EQ(period->first_born_id, last_extent_ - 5) << "each step makes six";
  size_t persistent = 0;
  size_t wrapping = 0;
  for (size_t index = 0; index < period->trace.tensors.size(); ++index) {
    const TraceTensor& tensor = period->trace.tensors[index];
    EXPECT_EQ(tensor.is_persistent(), period->extent_ids[index] != 0);
    persistent += tensor.is_persistent() ? 1 : 0;
    wrapping += !tensor.is_persistent() && tensor.freed_at < tensor.allocated_at ? 1 : 0;
  }
  EXPECT_EQ(period->trace.tensors.size(), 9u) << "three each of parameter, activation, gradient";
  EXPECT_EQ(persistent, 3u);
  EXPECT_EQ(wrapping, 3u) << "gradients live into the next step";
}

TEST_F(PeriodTest, LivesAreThoseOfTheProgram) {
  for (int step = 0; step < 3; ++step) train_step({1});
  const std::optional<Period> period = build();
  ASSERT_TRUE(period.has_value());
  // Ticks: 0 forward, 1 backward, 2 update.
  const uint32_t activation = period->trace.ops[1].accesses[0].tensor;
  EXPECT_EQ(period->trace.tensors[activation].allocated_at, 0u);
  EXPECT_EQ(period->trace.tensors[activation].freed_at, 1u);
  const uint32_t gradient = period->trace.ops[2].accesses[1].tensor;
  EXPECT_EQ(period->trace.tensors[gradient].allocated_at, 1u);
  EXPECT_EQ(period->trace.tensors[gradient].freed_at, 0u);
}

// The rings of threads are read one after another.
TEST_F(PeriodTest, OpsThatArriveOutOfOrderTakeNoTime) {
  train_step({1, 2});
  op(kForward, {{1}});
  flush();
  now_ -= 5'000'000;
  op(kForward, {{2}});
  now_ += 10'000'000;
  op(kUpdate, {{1, true}});
  mark();
  const std::optional<Period> period = build_from_one();
  ASSERT_TRUE(period.has_value());
  EXPECT_EQ(period->trace.ops[0].compute_ns, 0u);
  for (const TraceOp& op : period->trace.ops) EXPECT_LT(op.compute_ns, 1'000'000'000'000u);
}

TEST_F(PeriodTest, OneWholeStepIsAPeriod) {
  train_step({1, 2});
  EXPECT_FALSE(build_from_one().has_value()) << "the start of the first step was not marked";
  train_step({1, 2});
  EXPECT_FALSE(build().has_value()) << "no two whole steps";
  const std::optional<Period> guess = build_from_one();
  ASSERT_TRUE(guess.has_value());
  train_step({1, 2});
  const std::optional<Period> period = build();
  ASSERT_TRUE(period.has_value());
  EXPECT_TRUE(guess->is_same_kind(*period));
  for (size_t tensor = 0; tensor < period->trace.tensors.size(); ++tensor) {
    EXPECT_EQ(guess->trace.tensors[tensor].allocated_at, period->trace.tensors[tensor].allocated_at)
        << tensor;
    EXPECT_EQ(guess->trace.tensors[tensor].freed_at, period->trace.tensors[tensor].freed_at)
        << tensor;
  }
}

// The optimizer makes its state at the first update, and fills it. Later updates only use it.
TEST_F(PeriodTest, WhatTheFirstStepMakesIsAlwaysThereAndNotMadeAgain) {
  constexpr uint32_t kFill = 9;
  op(kBackward, {{1}});
  std::vector<uint64_t> gradients = {allocate(), allocate()};
  std::vector<uint64_t> states;
  for (int step = 0; step < 4; ++step) {
    mark();  // as torch does, before the update
    if (states.empty()) {
      for (int count = 0; count < 2; ++count) {
        states.push_back(allocate());
        op(kFill, {{states.back(), true}});
      }
    }
    for (size_t layer = 0; layer < 2; ++layer) {
      op(kUpdate, {{layer + 1, true}, {gradients[layer]}, {states[layer], true}});
    }
    for (const uint64_t gradient : gradients) free(gradient);
    gradients.clear();
    for (uint64_t parameter = 1; parameter <= 2; ++parameter) op(kForward, {{parameter}});
    for (uint64_t parameter = 2; parameter >= 1; --parameter) {
      op(kBackward, {{parameter}});
      gradients.push_back(allocate());
    }
    std::ranges::reverse(gradients);
    mark();
    const std::optional<Period> period = build_from_one();
    ASSERT_TRUE(period.has_value()) << step;
    EXPECT_EQ(period->trace.tick_count(), 6u) << "step " << step;
    EXPECT_EQ(period->born_bytes, 2 * kBytes) << "gradients; step " << step;
    for (const uint64_t state : states) {
      EXPECT_EQ(std::ranges::count(period->extent_ids, state), 1) << "step " << step;
    }
  }
}

TEST_F(PeriodTest, StepsThatTakeTurnsAreOnePeriod) {
  for (int round = 0; round < 4; ++round) {
    train_step({1, 2});
    train_step({3, 4, 5});
  }
  const std::optional<Period> period = build();
  ASSERT_TRUE(period.has_value());
  EXPECT_EQ(period->trace.tick_count(), 15u);
}

// With two marks a period, the loop is seen from either of them.
TEST_F(PeriodTest, ALoopIsTheSameFromAnyOfItsTicks) {
  for (int round = 0; round < 3; ++round) {
    train_step({1, 2});
    train_step({3, 4, 5});
  }
  const std::optional<Period> from_first = build();
  train_step({1, 2});
  const std::optional<Period> from_second = build();
  ASSERT_TRUE(from_first && from_second);
  EXPECT_FALSE(from_first->is_same_kind(*from_second));
  EXPECT_TRUE(from_first->is_same_loop(*from_second));
  for (int step = 0; step < 3; ++step) train_step({1, 2});
  EXPECT_FALSE(build()->is_same_loop(*from_first));
}

TEST_F(PeriodTest, ALoopThatDiffersALittleHasTheSameOps) {
  std::vector<uint64_t> parameters;
  for (uint64_t parameter = 1; parameter <= 20; ++parameter) parameters.push_back(parameter);
  train_step(parameters);
  train_step(parameters);
  const std::optional<Period> whole = build_from_one();
  op(99, {{1}});  // only once
  train_step(parameters);
  const std::optional<Period> differing = build_from_one();
  ASSERT_TRUE(whole && differing);
  EXPECT_FALSE(differing->is_like(*whole));
  EXPECT_TRUE(differing->has_same_ops(*whole));
  for (uint64_t& parameter : parameters) parameter += 50;
  train_step(parameters);
  EXPECT_FALSE(build_from_one()->has_same_ops(*whole)) << "another model";
}

TEST_F(PeriodTest, WhatIsUsedForMoreThanAPeriodIsAnotherOneEachTime) {
  uint64_t older = allocate();
  uint64_t newer = allocate();
  for (int round = 0; round < 4; ++round) {
    op(kForward, {{1}});
    const uint64_t newest = allocate();
    op(kBackward, {{older}});
    free(older);
    older = newer;
    newer = newest;
    mark();
  }
  const std::optional<Period> period = build();
  ASSERT_TRUE(period.has_value());
  const uint32_t tensor = period->trace.ops[1].accesses[0].tensor;
  EXPECT_EQ(period->extent_ids[tensor], 0u);
}

TEST_F(PeriodTest, AnotherBatchSizeIsTheSameKind) {
  for (int step = 0; step < 3; ++step) train_step({1, 2});
  const std::optional<Period> small = build();
  train_step({1, 2}, 3 * kBytes);
  const std::optional<Period> large = build();
  ASSERT_TRUE(small && large);
  EXPECT_TRUE(small->is_same_kind(*large));
  EXPECT_TRUE(is_copy(log_, *last_segment(log_), *small));
  EXPECT_EQ(large->trace.peak_bytes(), small->trace.peak_bytes() + 2 * 2 * kBytes)
      << "two activations of today's size";
}

TEST_F(PeriodTest, LayersThatLookAlikeDoNotRepeat) {
  for (uint64_t parameter = 1; parameter <= 40; ++parameter) op(kForward, {{parameter}});
  EXPECT_TRUE(repeats().empty());
  // Many layers do not hide the repetition either.
  for (int round = 0; round < 2; ++round) {
    for (uint64_t parameter = 1; parameter <= 40; ++parameter) op(kForward, {{parameter}});
  }
  const std::vector<PeriodPlace> places = repeats();
  ASSERT_FALSE(places.empty());
  EXPECT_EQ(places[0].length, 40u);
  EXPECT_TRUE(build_period(log_, places[0], recorder_).has_value());
}

TEST_F(PeriodTest, RepetitionsWithoutMarksAreFound) {
  uint64_t cache = allocate();
  for (int token = 0; token < 6; ++token) {
    for (uint64_t parameter = 1; parameter <= 4; ++parameter) op(kForward, {{parameter}});
    op(kUpdate, {{cache}});
    const uint64_t grown = allocate(kBytes + static_cast<uint64_t>(token) * 4096);
    free(cache);
    cache = grown;
  }
  std::optional<Period> found;
  for (const PeriodPlace& place : repeats()) {
    found = build_period(log_, place, recorder_);
    if (found) break;
  }
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->trace.tick_count(), 5u);
  EXPECT_EQ(found->trace.tensors.size(), 5u) << "four parameters and a cache that moves";
}

// Without marks, a part of the second pass is enough when it names the same parameters.
TEST_F(PeriodTest, APrefixOfTheSecondPassIsEnough) {
  for (uint64_t parameter = 1; parameter <= 100; ++parameter) op(kForward, {{parameter}});
  for (uint64_t parameter = 1; parameter <= 30; ++parameter) op(kForward, {{parameter}});
  EXPECT_TRUE(repeats().empty());
  for (uint64_t parameter = 31; parameter <= 40; ++parameter) op(kForward, {{parameter}});
  const std::vector<PeriodPlace> places = repeats();
  ASSERT_FALSE(places.empty());
  EXPECT_EQ(places[0].length, 100u);
  const std::optional<Period> period = build_period(log_, places[0], recorder_);
  ASSERT_TRUE(period.has_value());
  EXPECT_EQ(period->trace.tensors.size(), 100u);
}

// An evaluation within a step: its ticks are additional ones, the others are those of the step.
TEST_F(PeriodTest, WhatComesBetweenIsFound) {
  std::vector<uint64_t> parameters;
  for (uint64_t parameter = 1; parameter <= 40; ++parameter) parameters.push_back(parameter);
  train_step(parameters);
  train_step(parameters);
  const std::optional<Period> period = build_from_one();
  ASSERT_TRUE(period.has_value());
  const uint64_t begin = log_.end();
  for (int pass = 0; pass < 2; ++pass) {
    for (const uint64_t parameter : parameters) op(99, {{parameter}});
  }
  flush();
  const uint64_t end = log_.end();
  train_step(parameters);
  flush();
  const Comparison comparison = compare(log_, *last_segment(log_), *period);
  EXPECT_EQ(comparison.of_period, 1.0);
  ASSERT_EQ(comparison.additions.size(), 1u);
  EXPECT_EQ(comparison.additions[0].begin, begin);
  EXPECT_EQ(comparison.additions[0].end(), end);
  EXPECT_FALSE(comparison.has_replacements);
}

// Another budget cuts a list op into other chunks, which come in place of those of the period.
TEST_F(PeriodTest, WhatComesInPlaceOfOtherTicksIsTold) {
  const auto step = [&](size_t chunks) {
    for (uint64_t parameter = 1; parameter <= 200; ++parameter) op(kForward, {{parameter}});
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      op(kUpdate, std::vector<Use>(1 + chunks % 7, {chunk + 1, true}));
    }
    mark();
  };
  step(20);
  step(20);
  const std::optional<Period> period = build_from_one();
  ASSERT_TRUE(period.has_value());
  const uint64_t begin = log_.end() + 200;
  step(50);
  flush();
  const Comparison comparison = compare(log_, *last_segment(log_), *period);
  EXPECT_DOUBLE_EQ(comparison.of_period, 200.0 / 220);
  ASSERT_EQ(comparison.additions.size(), 1u);
  EXPECT_EQ(comparison.additions[0].begin, begin);
  EXPECT_TRUE(comparison.has_replacements);
}

TEST_F(PeriodTest, ALoopContainsItsParts) {
  for (int round = 0; round < 3; ++round) {
    train_step({1, 2});
    train_step({3, 4, 5});
  }
  const std::optional<Period> whole = build();
  const std::optional<Period> part = build_from_one();
  ASSERT_TRUE(whole && part);
  EXPECT_TRUE(whole->contains(*part));
  EXPECT_FALSE(part->contains(*whole));
}

TEST_F(PeriodTest, CopiesOfLayersThatLookAlikeBeginWithTheSameLayer) {
  for (int round = 0; round < 4; ++round) {
    for (uint64_t parameter = 1; parameter <= 3; ++parameter) op(kForward, {{parameter}});
  }
  std::optional<Period> period;
  for (const PeriodPlace& place : repeats()) {
    period = build_period(log_, place, recorder_);
    if (period) break;
  }
  ASSERT_TRUE(period.has_value());
  ASSERT_EQ(period->trace.tick_count(), 3u);
  for (uint64_t parameter = 1; parameter <= 3; ++parameter) {
    op(kForward, {{parameter}});  // the log ends with another layer each time
    flush();
    const std::optional<PeriodPlace> place = find_copy(log_, *period);
    ASSERT_TRUE(place.has_value());
    const std::optional<Period> again = build_period(log_, *place, recorder_);
    ASSERT_TRUE(again.has_value());
    EXPECT_TRUE(again->is_same_kind(*period)) << parameter;
  }
}

TEST_F(PeriodTest, CopiesAreFoundWhereverTheStreamEnds) {
  for (int step = 0; step < 4; ++step) train_step({1, 2});
  const std::optional<Period> period = build();
  ASSERT_TRUE(period.has_value());
  op(kForward, {{1}});
  flush();
  const std::optional<PeriodPlace> place = find_copy(log_, *period);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->begin + place->length, log_.end() - 1);
  EXPECT_TRUE(build_period(log_, *place, recorder_)->is_same_kind(*period));
}

// The learner may look while the last op of a period has begun but not yet allocated.
TEST_F(PeriodTest, ALastTickThatStillRunsIsNotTakenForWhole) {
  for (int step = 0; step < 4; ++step) train_step({1, 2});
  const std::optional<Period> period = build();
  ASSERT_TRUE(period.has_value());
  uint64_t last = allocate();
  for (int round = 0; round < 4; ++round) {
    op(kForward, {{1}});
    op(kBackward, {{2}});
    op(kUpdate, {{last}});
    if (round == 3) break;  // before it allocates
    free(last);
    last = allocate();
  }
  flush();
  const std::vector<PeriodPlace> places = repeats(log_.marks().back());
  ASSERT_FALSE(places.empty());
  EXPECT_EQ(places[0].length, 3u);
  EXPECT_EQ(places[0].begin + places[0].length, log_.end() - 1);
  EXPECT_TRUE(build_period(log_, places[0], recorder_).has_value());
}

// Where the device's times are known, the host's clock does not count. An op takes the lower
// quartile of its measurements in the last repetitions, because what disturbs it, like the loading
// of a kernel at its first use, only adds time. An op without any takes the time of similar ones.
TEST_F(PeriodTest, TimesOfTheDeviceCountWhereThereAreAny) {
  constexpr uint64_t kOtherBytes = 4 * kBytes;
  std::vector<OpTime> times;
  const auto measured = [&](uint32_t number, uint64_t ns) { times.push_back({now_, number, ns}); };
  for (uint64_t step = 0; step < 5; ++step) {
    op(kForward, {{1}});  // in all repetitions
    measured(kForward, 100 + (step == 0 ? 9000 : step));
    op(kForward, {{2}});                      // never; it has the digest of the one before
    op(kForward, {{3, false, kOtherBytes}});  // never; it has its name and four times its bytes
    op(kBackward, {{2}});                     // in one that is long gone
    if (step == 0) measured(kBackward, 21);   // the least time that any op takes
    op(kUpdate, {{3, true}});                 // never, and nothing is like it
    mark();
  }
  flush();
  log_.append_times(times);
  const std::optional<Period> period = build();
  ASSERT_TRUE(period.has_value());
  const std::vector<TraceOp>& ops = period->trace.ops;
  EXPECT_EQ(ops[0].compute_ns, 102u) << "one of the five is lower";
  EXPECT_EQ(ops[1].compute_ns, 102u);
  EXPECT_EQ(ops[2].compute_ns, 21u + 4 * (102u - 21u));
  EXPECT_EQ(ops[3].compute_ns, 21u);
  EXPECT_EQ(ops[4].compute_ns, (102u + 21u) / 2);
}

TEST_F(PeriodTest, WaitingIsNotComputing) {
  for (int step = 0; step < 3; ++step) {
    op(kForward, {{1}});
    wait(uint64_t{1} << 40);
    op(kBackward, {{2}});
    op(kUpdate, {{1}});
    mark();
  }
  const std::optional<Period> period = build();
  ASSERT_TRUE(period.has_value());
  EXPECT_EQ(period->trace.ops[0].compute_ns, 0u);
  EXPECT_GT(period->trace.ops[1].compute_ns, 0u);
  EXPECT_GT(period->trace.ops[2].compute_ns, 0u) << "it lasts to the start of the next step";
}

// Other work of the machine may last for several steps. Two undisturbed ones of the last five tell
// how long an op takes.
TEST_F(PeriodTest, AnOpTakesTheLowerQuartileOfItsLastTimes) {
  constexpr uint64_t kOtherWork = uint64_t{1} << 40;
  std::vector<bool> is_slow;
  for (const bool is_disturbed : {false, false, true, true, true, true}) {
    op(kForward, {{1}});
    if (is_disturbed) now_ += kOtherWork;
    op(kBackward, {{2}});
    op(kUpdate, {{1, true}});
    mark();
    const std::optional<Period> period = build_from_one();
    if (period) is_slow.push_back(period->trace.ops[0].compute_ns > kOtherWork / 100);
  }
  EXPECT_EQ(is_slow, (std::vector<bool>{false, false, false, false, true}));
}

// The pause is for a checkpoint, for example: when the step is looked at, its last tick is the
// newest of all, so only earlier last ticks tell how long it takes.
TEST_F(PeriodTest, APauseBetweenStepsIsNotComputing) {
  constexpr uint64_t kPause = uint64_t{1} << 40;
  for (int step = 0; step < 4; ++step) {
    if (step == 3) now_ += kPause;
    train_step({1, 2});
  }
  const std::optional<Period> period = build();
  ASSERT_TRUE(period.has_value());
  const std::vector<TraceOp>& ops = period->trace.ops;
  EXPECT_GT(ops.back().compute_ns, 0u);
  EXPECT_LT(ops.back().compute_ns, 2 * ops.front().compute_ns);
}

}  // namespace
}  // namespace tencache
