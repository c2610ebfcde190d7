// SPDX-License-Identifier: Apache-2.0
//
// The bound: small cases worked out by hand. bound_fuzz_test.cpp compares it with plans at random.
#include "learn/bound.h"

#include <gtest/gtest.h>

#include "learn/trace.h"

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

double bound_ns(const Trace& trace, const Machine& machine) {
  return static_cast<double>(bound_step_ns(trace, machine));
}

TEST(BoundTest, NothingHasToBeReadWhenAllFits) {
  EXPECT_EQ(bound_bytes_read(three_in_turn(), 30), 0u);
  EXPECT_EQ(bound_step_ns(three_in_turn(), {30, 1e9, 1e9}), 300u);
}

TEST(BoundTest, ThreeInTurnOnTwoPlaces) {
  // Every other op finds its tensor, because the one that leaves is always the one that was used
  // just before, which is needed last. So 15 bytes a period are read on average.
  EXPECT_EQ(bound_bytes_read(three_in_turn(), 20), 15u);
  EXPECT_EQ(bound_bytes_read(three_in_turn(), 25), 7u);
}

TEST(BoundTest, ThreeInTurnOnOnePlaceAreAllRead) {
  EXPECT_EQ(bound_bytes_read(three_in_turn(), 10), 30u);
  EXPECT_EQ(bound_step_ns(three_in_turn(), {10, 1e7, 1e9}), 3300u) << "the link is slower";
  EXPECT_EQ(bound_step_ns(three_in_turn(), {10, 1e9, 1e9}), 330u) << "computing is slower";
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
  // wait for the other three. When they end, one of the long op's two can be there.
  Trace trace = three_in_turn();
  trace.ops = {{0, 1000, {{0, false}, {1, false}}},
               {0, 0, {{0, false}, {1, false}}},
               {0, 0, {{2, false}, {3, false}}},
               {0, 0, {{4, false}, {5, false}}}};
  trace.tensors.resize(6, {10, kNoTick, kNoTick});
  EXPECT_NEAR(bound_ns(trace, {30, 1e9, 1e9}), 1040, 1);
  // Two are allocated in the three ops, so they are not read. At most one of the other four is
  // there beside them, so the long op waits for three.
  trace.tensors[2] = trace.tensors[3] = {10, 2, 2};
  EXPECT_NEAR(bound_ns(trace, {30, 1e9, 1e9}), 1030, 1);
  trace.fixed_bytes = 5;
  EXPECT_NEAR(bound_ns(trace, {30, 1e9, 1e9}), 1035, 1);
}

TEST(BoundTest, BurstAcrossTheBorderOfThePeriodCounts) {
  // The burst is three ops again, but its last op is at the beginning of the period.
  Trace trace = three_in_turn();
  trace.ops = {{0, 0, {{4, false}, {5, false}}},
               {0, 1000, {{0, false}, {1, false}}},
               {0, 0, {{0, false}, {1, false}}},
               {0, 0, {{2, false}, {3, false}}}};
  trace.tensors.resize(6, {10, kNoTick, kNoTick});
  EXPECT_NEAR(bound_ns(trace, {30, 1e9, 1e9}), 1040, 1);
  trace.tensors[4] = trace.tensors[5] = {10, 0, 0};  // allocated in the burst, so not read
  EXPECT_NEAR(bound_ns(trace, {30, 1e9, 1e9}), 1020, 1);
}

TEST(BoundTest, WhatTheOpBeforeABurstHoldsIsInTheWay) {
  // As above, but the long op names another tensor of 20 bytes: at most one of the six can be there
  // when the burst begins, and half of that other tensor when the burst ends.
  Trace trace = three_in_turn();
  trace.ops = {{0, 1000, {{6, false}}},
               {0, 0, {{0, false}, {1, false}}},
               {0, 0, {{2, false}, {3, false}}},
               {0, 0, {{4, false}, {5, false}}}};
  trace.tensors.resize(6, {10, kNoTick, kNoTick});
  trace.tensors.push_back({20, kNoTick, kNoTick});
  EXPECT_NEAR(bound_ns(trace, {30, 1e9, 1e9}), 1060, 1);
  trace.tensors[6] = {20, 0, 0};  // new each time, and gone after that op
  EXPECT_NEAR(bound_ns(trace, {30, 1e9, 1e9}), 1050, 1);
  trace.ops[0].accesses = {{6, false}, {0, false}};  // the burst names one of the two
  EXPECT_NEAR(bound_ns(trace, {30, 1e9, 1e9}), 1050, 1);
}

TEST(BoundTest, BurstsCountWhereverTheyBegin) {
  // Five times, tensors of 10 bytes are made, and read once more in reverse. Half of them fit, so
  // the others are written while they are made, and read afterwards. The period has more ops than a
  // bound has borders of windows, and the turns lie between the borders at equal distances.
  constexpr uint32_t kTensors = 201;
  Trace trace;
  trace.op_names = {"op"};
  for (int pass = 0; pass < 5; ++pass) {
    const Tick first = trace.tick_count();
    for (uint32_t index = 0; index < kTensors; ++index) {
      const auto tensor = static_cast<uint32_t>(trace.tensors.size());
      trace.tensors.push_back({10, first + index, first + 2 * kTensors - 1 - index});
      trace.ops.push_back({0, 0, {{tensor, true}}});
    }
    for (uint32_t index = kTensors; index-- > 0;) {
      const auto tensor = static_cast<uint32_t>(trace.tensors.size()) - kTensors + index;
      trace.ops.push_back({0, 0, {{tensor, false}}});
    }
  }
  ASSERT_TRUE(trace.validate().is_ok());
  EXPECT_NEAR(bound_ns(trace, {1000, 1e9, 1e9}), 5 * 2 * (10 * kTensors - 1000), 1);
}

// Four tensors of 10 bytes that are made one after the other, and named once more in reverse.
Trace stack_of_four(uint64_t compute_ns) {
  Trace trace;
  trace.op_names = {"op"};
  for (uint32_t tensor = 0; tensor < 4; ++tensor) {
    trace.ops.push_back({0, compute_ns, {{tensor, true}}});
    trace.tensors.push_back({10, tensor, 7 - tensor});
  }
  for (uint32_t tensor = 4; tensor-- > 0;) trace.ops.push_back({0, compute_ns, {{tensor, false}}});
  return trace;
}

TEST(BoundTest, WhatAWindowWritesAndLeavesBehindHasToGo) {
  // Two of the four fit. The other two leave in the first half, and come back in the second.
  EXPECT_NEAR(bound_ns(stack_of_four(0), {20, 1e9, 1e9}), 40, 1);
  EXPECT_NEAR(bound_ns(stack_of_four(0), {20, 1e9, 5e8}), 60, 1) << "writes take twice as long";
  // Nothing leaves before the first op ends; the last op computes when all is there. Between the
  // two rows of ops is the one that names the last tensor again.
  EXPECT_NEAR(bound_ns(stack_of_four(2), {20, 1e9, 1e9}), 22 + 2 + 22, 1);
  EXPECT_NEAR(bound_ns(stack_of_four(100), {20, 1e9, 1e9}), 800, 1) << "computing hides it";
  // What is freed unused before the second half begins is not there any more.
  Trace trace = stack_of_four(0);
  trace.tensors[0].freed_at = trace.tensors[1].freed_at = 3;
  trace.ops[6].accesses.clear();
  trace.ops[7].accesses.clear();
  EXPECT_NEAR(bound_ns(trace, {20, 1e9, 1e9}), 20, 1) << "at the end of op 3 there are still four";
}

TEST(BoundTest, AHalfDuplexLinkCarriesOneAfterTheOther) {
  Trace trace = three_in_turn();
  for (uint32_t tick = 0; tick < 3; ++tick) {
    trace.ops[tick].compute_ns = 0;
    trace.ops[tick].accesses[0].is_write = true;
  }
  EXPECT_NEAR(bound_ns(trace, {10, 1e9, 1e9}), 30, 1);
  // All three are read; when the period ends, two of those that it wrote are elsewhere.
  Machine machine = {10, 1e9, 1e9, true};
  EXPECT_NEAR(bound_ns(trace, machine), 50, 1);
  machine.gain_of_both = 1.25;
  EXPECT_NEAR(bound_ns(trace, machine), 40, 1) << "so much more does it carry at once";
}

TEST(BoundTest, ProcessorTimeOfMovesComesBesidesComputing) {
  Machine machine = {10, 1e9, 1e9};
  machine.read_work_ns_per_byte = 2;
  EXPECT_NEAR(bound_ns(three_in_turn(), machine), 300 + 60, 1) << "30 bytes are read";
  Trace trace = three_in_turn();
  for (TraceOp& op : trace.ops) op.accesses[0].is_write = true;
  machine.write_work_ns_per_byte = 1;
  machine.drop_work_ns_per_byte = 3;
  EXPECT_NEAR(bound_ns(trace, machine), 300 + 60 + 20 + 90, 1) << "20 are written, and 30 leave";
}

TEST(BoundTest, ProcessorTimeOfMovesMayPassWhileALinkIsWaitedFor) {
  // 15 bytes are read, which costs 7. Half of the link's time is free of such costs.
  Machine machine = {20, 1e9, 1e9};
  machine.read_work_ns_per_byte = 0.5;
  EXPECT_NEAR(bound_ns(three_in_turn(), machine), 307, 1) << "nothing need wait";
  // The second and third op wait for 10 bytes, for 5 beside the processor time.
  Trace trace = three_in_turn();
  trace.ops[0].compute_ns = 1000;
  trace.ops[1].compute_ns = trace.ops[2].compute_ns = 0;
  EXPECT_NEAR(bound_ns(trace, machine), 1012, 1);
  machine.read_work_ns_per_byte = 0;
  EXPECT_NEAR(bound_ns(trace, machine), 1010, 1);
}

TEST(BoundTest, WhatNeitherTierHoldsPassesTheDisk) {
  Machine machine{.budget_bytes = 20, .read_bytes_per_s = 1e9, .write_bytes_per_s = 1e9};
  machine.host_bytes = 10;
  machine.disk_read_bytes_per_s = 1e8;
  machine.disk_write_bytes_per_s = 5e7;
  EXPECT_NEAR(bound_ns(stack_of_four(0), machine), 100 + 200, 1) << "one read, one written";
  machine.host_bytes = 20;
  EXPECT_NEAR(bound_ns(stack_of_four(0), machine), 40, 1) << "the disk is not needed";
  // Three in turn on two places in all read 15 bytes a period (ThreeInTurnOnTwoPlaces).
  machine.budget_bytes = machine.host_bytes = 10;
  EXPECT_NEAR(bound_ns(three_in_turn(), machine), 330, 1);
  machine.disk_read_bytes_per_s = 1e7;
  EXPECT_NEAR(bound_ns(three_in_turn(), machine), 1500, 1);
}

TEST(BoundTest, WhatNoOpNamesStaysInTheWay) {
  Trace trace = three_in_turn();
  trace.tensors.push_back({10, kNoTick, kNoTick});
  EXPECT_NEAR(bound_ns(trace, {20, 1e9, 1e9}), 330, 1);
}

}  // namespace
}  // namespace tencache
