// SPDX-License-Identifier: Apache-2.0
//
// The bound: small cases by hand; never above the simulator's result on random traces; equal to the
// best schedule where tensors have one size and Belady's rule is exact.
#include "learn/bound.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "learn/planner.h"
#include "support/random_trace.h"

namespace tencache {
namespace {

Trace three_in_turn() {
  Trace trace;
  trace.op_names = {"op"};
  for (uint32_t tensor = 0; tensor < 3; ++tensor) {
    trace.ops.push_back({0, 100, {{tensor, false}}});
    trace.tensors.push_back({10, kNoTick, kNoTick});
  }
  return trace;
}

TEST(BoundTest, NothingHasToBeReadWhenAllFits) {
  EXPECT_EQ(bound_bytes_read(three_in_turn(), 30), 0u);
  EXPECT_EQ(bound_step_ns(three_in_turn(), {30, 1e9, 1e9}), 300u);
}

TEST(BoundTest, ThreeInTurnOnTwoPlaces) {
  // Two tensors stay for two ops of three: 15 bytes a period on average, because the tensor that is
  // needed last but one always leaves.
  EXPECT_EQ(bound_bytes_read(three_in_turn(), 20), 15u);
  EXPECT_EQ(bound_bytes_read(three_in_turn(), 25), 7u);
}

TEST(BoundTest, ThreeInTurnOnOnePlaceAreAllRead) {
  EXPECT_EQ(bound_bytes_read(three_in_turn(), 10), 30u);
  EXPECT_EQ(bound_step_ns(three_in_turn(), {10, 1e7, 1e9}), 3000u) << "the link is slower";
  EXPECT_EQ(bound_step_ns(three_in_turn(), {10, 1e9, 1e9}), 300u) << "computing is slower";
}

TEST(BoundTest, WhatIsFreedUnusedLeavesFirst) {
  Trace trace = three_in_turn();
  trace.tensors.push_back({10, 0, 2});  // there all the time, never named after its birth
  // Another tensor has to be away only while this one is born.
  EXPECT_EQ(bound_bytes_read(trace, 30), 10u);
  trace.tensors.back() = {10, kNoTick, kNoTick};  // never named at all: it cannot leave
  EXPECT_EQ(bound_bytes_read(trace, 30), 15u);
}

TEST(BoundTest, AnOptimizerStepHasToReadWhatItNames) {
  // Six tensors of 10 bytes, three places. One long op names two of them; then three ops of no
  // duration name all six. When the three ops begin, at most three tensors can be there, so they
  // wait for the other three.
  Trace trace = three_in_turn();
  trace.ops = {{0, 1000, {{0, false}, {1, false}}},
               {0, 0, {{0, false}, {1, false}}},
               {0, 0, {{2, false}, {3, false}}},
               {0, 0, {{4, false}, {5, false}}}};
  trace.tensors.resize(6, {10, kNoTick, kNoTick});
  EXPECT_NEAR(static_cast<double>(bound_step_ns(trace, {30, 1e9, 1e9})), 1030, 1);
  trace.tensors[2] = trace.tensors[3] = {10, 2, 2};  // allocated there, so not read
  EXPECT_NEAR(static_cast<double>(bound_step_ns(trace, {30, 1e9, 1e9})), 1010, 1);
  trace.fixed_bytes = 5;
  EXPECT_NEAR(static_cast<double>(bound_step_ns(trace, {30, 1e9, 1e9})), 1015, 1);
}

TEST(BoundTest, BurstAcrossTheBorderOfThePeriodCounts) {
  // The three ops of the burst; its second half is at the beginning of the period.
  Trace trace = three_in_turn();
  trace.ops = {{0, 0, {{4, false}, {5, false}}},
               {0, 1000, {{0, false}, {1, false}}},
               {0, 0, {{0, false}, {1, false}}},
               {0, 0, {{2, false}, {3, false}}}};
  trace.tensors.resize(6, {10, kNoTick, kNoTick});
  EXPECT_NEAR(static_cast<double>(bound_step_ns(trace, {30, 1e9, 1e9})), 1030, 1);
  trace.tensors[4] = trace.tensors[5] = {10, 0, 0};  // allocated in the burst, so not read
  EXPECT_NEAR(static_cast<double>(bound_step_ns(trace, {30, 1e9, 1e9})), 1010, 1);
}

TEST(BoundTest, WhatTheOpBeforeABurstHoldsIsInTheWay) {
  // As above, but the long op names other tensors than the burst: at most one of the six can be
  // there when the burst begins.
  Trace trace = three_in_turn();
  trace.ops = {{0, 1000, {{6, false}}},
               {0, 0, {{0, false}, {1, false}}},
               {0, 0, {{2, false}, {3, false}}},
               {0, 0, {{4, false}, {5, false}}}};
  trace.tensors.resize(6, {10, kNoTick, kNoTick});
  trace.tensors.push_back({20, kNoTick, kNoTick});
  EXPECT_NEAR(static_cast<double>(bound_step_ns(trace, {30, 1e9, 1e9})), 1050, 1);
  trace.tensors[6] = {20, 0, 0};  // new each time, and gone after that op
  EXPECT_NEAR(static_cast<double>(bound_step_ns(trace, {30, 1e9, 1e9})), 1050, 1);
  trace.ops[0].accesses = {{6, false}, {0, false}};  // the burst names one of the two
  EXPECT_NEAR(static_cast<double>(bound_step_ns(trace, {30, 1e9, 1e9})), 1050, 1);
  trace.ops[0].accesses = {{0, false}, {1, false}};
  trace.tensors.pop_back();
  EXPECT_NEAR(static_cast<double>(bound_step_ns(trace, {30, 1e9, 1e9})), 1030, 1);
}

// In the long run only: a period that ends differently than it began may leave work to the next.
TEST(BoundTest, NoScheduleIsFaster) {
  Random random;
  int steady_count = 0;
  for (int round = 0; round < 500; ++round) {
    const Trace trace = random_trace(random, {.ops = 14, .tensors = 8});
    const std::vector<uint64_t> bytes = trace.bytes_by_tick();
    const uint64_t most = *std::max_element(bytes.begin(), bytes.end());
    const Machine machine{.budget_bytes = random.between(most / 2, most),
                          .read_bytes_per_s = 1e9,
                          .write_bytes_per_s = 1e9};
    const Planned planned = make_plan(trace, machine);
    if (planned.simulation.over_budget_bytes > 0) continue;  // not a schedule within the budget
    if (!planned.simulation.is_steady) continue;
    ++steady_count;
    // Fractions of periods are rounded down, by less than one byte a period.
    EXPECT_LE(bound_bytes_read(trace, machine.budget_bytes), planned.simulation.bytes_read)
        << "round " << round;
    EXPECT_LE(bound_step_ns(trace, machine), planned.simulation.step_ns) << "round " << round;
    if (HasFailure()) return;
  }
  EXPECT_GT(steady_count, 100);
}

}  // namespace
}  // namespace tencache
