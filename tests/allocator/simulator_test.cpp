// SPDX-License-Identifier: Apache-2.0
//
// Simulator: small schedules worked out by hand, and invariants on random traces and plans: nothing
// runs before its bytes are there, the budget holds unless told otherwise, bytes are conserved.
#include "learn/simulator.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/random_trace.h"

namespace tencache {
namespace {

const Plan kNoPlan = {{}, Victim::kLeastRecentlyUsed};

// Two tensors of 10 bytes, each named by one op of 100 ns; the first is written.
Trace two_in_turn() {
  Trace trace;
  trace.op_names = {"op"};
  trace.ops = {{0, 100, {{0, true}}}, {0, 100, {{1, false}}}};
  trace.tensors = {{10, kNoTick, kNoTick}, {10, kNoTick, kNoTick}};
  return trace;
}

TEST(SimulatorTest, WhatFitsNeverWaits) {
  const Simulation result = simulate(two_in_turn(), kNoPlan, byte_per_ns(20));
  EXPECT_EQ(result.step_ns, 200u);
  EXPECT_EQ(result.total_stall_ns(), 0u);
  EXPECT_EQ(result.bytes_read + result.bytes_written + result.bytes_dropped, 0u);
  EXPECT_TRUE(result.moves.empty());
  EXPECT_EQ(result.begin_ns, (std::vector<uint64_t>{0, 100}));
}

TEST(SimulatorTest, WithoutAPlanOpsWaitForRoomAndBytes) {
  const Simulation result = simulate(two_in_turn(), kNoPlan, byte_per_ns(10));
  // Before op 0 tensor 1 is dropped, for it has a copy, and 0 is read; before op 1 tensor 0 is
  // written, then 1 is read.
  EXPECT_EQ(result.stall_ns, (std::vector<uint64_t>{10, 20}));
  EXPECT_EQ(result.step_ns, 230u);
  EXPECT_EQ(result.bytes_read, 20u);
  EXPECT_EQ(result.bytes_late, 20u);
  EXPECT_EQ(result.bytes_written, 10u);
  EXPECT_EQ(result.bytes_dropped, 10u);
  EXPECT_EQ(result.over_budget_bytes, 0u);
}

TEST(SimulatorTest, OneOpMayExceedTheBudgetAndIsTold) {
  Trace trace = two_in_turn();
  trace.ops[0].accesses.push_back({1, false});
  const Simulation result = simulate(trace, kNoPlan, byte_per_ns(15));
  EXPECT_EQ(result.over_budget_bytes, 5u);
  EXPECT_EQ(result.used_bytes, (std::vector<uint64_t>{20, 20})) << "leaves as soon as it may";
}

// Three tensors in turn and room for two: the plan has each away while the other two are there.
TEST(SimulatorTest, PlannedMovesHideBehindCompute) {
  Trace trace;
  trace.op_names = {"op"};
  Plan plan;
  for (uint32_t tensor = 0; tensor < 3; ++tensor) {
    trace.ops.push_back({0, 100, {{tensor, true}}});
    trace.tensors.push_back({10, kNoTick, kNoTick});
    // Gone after its op; comes back while the op before its own runs.
    plan.moves.push_back({tensor, tensor, (tensor + 2) % 3, tensor});
  }
  const Simulation planned = simulate(trace, plan, byte_per_ns(20));
  EXPECT_EQ(planned.step_ns, 300u);
  EXPECT_EQ(planned.bytes_read, 30u);
  EXPECT_EQ(planned.bytes_late, 0u);
  EXPECT_EQ(planned.bytes_written, 30u);
  EXPECT_EQ(planned.over_budget_bytes, 0u);
  const Simulation reactive = simulate(trace, kNoPlan, byte_per_ns(20));
  EXPECT_EQ(reactive.step_ns, 300u + 3 * 20);
}

TEST(SimulatorTest, AHalfDuplexLinkTakesTurns) {
  Trace trace = two_in_turn();
  trace.ops[1].accesses[0].is_write = true;
  trace.ops[0].compute_ns = trace.ops[1].compute_ns = 0;
  const auto step_ns = [&](bool is_half_duplex) {
    Plan plan;
    plan.moves = {{0, 0, 1, 0}, {1, 1, 0, 1}};
    return simulate(trace, plan, byte_per_ns(20, is_half_duplex)).step_ns;
  };
  EXPECT_GE(step_ns(true), step_ns(false));
}

Plan random_plan(Random& random, const Trace& trace) {
  Plan plan;
  plan.otherwise = random.chance(0.5) ? Victim::kLeastRecentlyUsed : Victim::kFarthestNextUse;
  for (const IdlePeriod& period : idle_periods(trace)) {
    if (random.chance(0.5)) continue;
    PlannedMove move{period.tensor, period.after, kNoTick, period.before};
    if (period.comes_back()) {
      const Tick count = trace.tick_count();
      const Tick length = (period.before + count - period.after - 1) % count + 1;
      move.fetch_at = (period.after + static_cast<Tick>(random.between(1, length))) % count;
    }
    plan.moves.push_back(move);
  }
  return plan;
}

TEST(SimulatorTest, InvariantsHoldForAnyPlan) {
  Random random;
  for (int round = 0; round < 2000; ++round) {
    const Trace trace = random_trace(random, {.ops = 12, .tensors = 8});
    const Plan plan = random_plan(random, trace);
    const std::vector<uint64_t> bytes = trace.bytes_by_tick();
    const uint64_t most = *std::max_element(bytes.begin(), bytes.end());
    const Machine limits = byte_per_ns(random.between(most / 3, most), random.chance(0.5));
    const Simulation result = simulate(trace, plan, limits);
    SCOPED_TRACE(round);
    ASSERT_EQ(result.stall_ns.size(), trace.ops.size());
    EXPECT_EQ(result.total_stall_ns(),
              std::accumulate(result.stall_ns.begin(), result.stall_ns.end(), uint64_t{0}));
    for (Tick tick = 0; tick < trace.tick_count(); ++tick) {
      uint64_t named = trace.fixed_bytes;
      for (const TraceAccess& access : trace.ops[tick].accesses) {
        named += trace.tensors[access.tensor].bytes;
      }
      EXPECT_GE(result.used_bytes[tick], named) << "something named is not there, tick " << tick;
      EXPECT_LE(result.used_bytes[tick], limits.budget_bytes + result.over_budget_bytes);
      EXPECT_LE(result.used_bytes[tick], most) << "more than there is, tick " << tick;
    }
    // What came back had left; what left was written or had been written before.
    uint64_t left = 0;
    for (const PlannedMove& move : result.moves) left += trace.tensors[move.tensor].bytes;
    EXPECT_EQ(left, result.bytes_written + result.bytes_dropped);
    const Simulation again = simulate(trace, plan, limits);
    EXPECT_EQ(again.begin_ns, result.begin_ns) << "not a function of its arguments";
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tencache
