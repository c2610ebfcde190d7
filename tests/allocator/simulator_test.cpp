// SPDX-License-Identifier: Apache-2.0
//
// simulate: small schedules worked out by hand, victims against a naive cache's, and invariants on
// random traces and plans. Nothing runs before its bytes are there, reported excesses are the only
// ones over the budget, and bytes are conserved.
#include "learn/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>

#include "support/random_trace.h"
#include "support/simulate.h"

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
  // Before op 0, tensor 1 is dropped, because it has a copy, and 0 is read; before op 1, tensor 0
  // is written, then 1 is read.
  EXPECT_EQ(result.stall_ns, (std::vector<uint64_t>{10, 20}));
  EXPECT_EQ(result.step_ns, 230u);
  EXPECT_EQ(result.bytes_read, 20u);
  EXPECT_EQ(result.bytes_late, 20u);
  EXPECT_EQ(result.bytes_written, 10u);
  EXPECT_EQ(result.bytes_dropped, 10u);
  EXPECT_EQ(result.over_budget_bytes, 0u);
}

TEST(SimulatorTest, AFetchIsLateWhereItsWaitCanBeToldFromNone) {
  Machine machine = byte_per_ns(10);
  machine.wait_resolution_ns = 9;  // each fetch is waited for 10 ns
  EXPECT_EQ(simulate(two_in_turn(), kNoPlan, machine).bytes_late, 20u);
  machine.wait_resolution_ns = 10;
  const Simulation result = simulate(two_in_turn(), kNoPlan, machine);
  EXPECT_EQ(result.bytes_late, 0u);
  EXPECT_EQ(result.stall_ns, (std::vector<uint64_t>{10, 20})) << "it takes its time";
}

TEST(SimulatorTest, OneOpMayExceedTheBudgetAndIsTold) {
  Trace trace = two_in_turn();
  trace.ops[0].accesses.push_back({1, false});
  const Simulation result = simulate(trace, kNoPlan, byte_per_ns(15));
  EXPECT_EQ(result.over_budget_bytes, 5u);
  EXPECT_EQ(result.used_bytes, (std::vector<uint64_t>{20, 20})) << "leaves as soon as it may";
}

TEST(SimulatorTest, WhatWasFetchedTooEarlyLeavesAgain) {
  // Op 1 needs 20 bytes of 25, and tensor 1 was fetched before it for op 2.
  Trace trace;
  trace.op_names = {"op"};
  trace.ops = {{0, 100, {{0, false}}}, {0, 100, {{2, false}}}, {0, 100, {{1, false}}}};
  trace.tensors = {{10, kNoTick, kNoTick}, {10, kNoTick, kNoTick}, {20, kNoTick, kNoTick}};
  const Plan plan = {{{1, 2, 0, 2}}, Victim::kFarthestNextUse};
  const Simulation result = simulate(trace, plan, byte_per_ns(25));
  EXPECT_EQ(result.over_budget_bytes, 0u);
  EXPECT_EQ(result.bytes_read, 50u) << "tensor 1 twice, the others once";
}

TEST(SimulatorTest, MigrationsTellWhenTheLinksAreTaken) {
  const Simulation result = simulate(two_in_turn(), kNoPlan, byte_per_ns(10));
  ASSERT_EQ(result.begin_ns, (std::vector<uint64_t>{10, 130}));
  // Tensor 1 is dropped and 0 read before op 0; 0 is written, then 1 read, before op 1.
  const std::vector<std::tuple<uint32_t, bool, int64_t, int64_t>> expected = {
      {1, false, 0, 0}, {0, true, 0, 10}, {0, false, 110, 120}, {1, true, 120, 130}};
  std::vector<std::tuple<uint32_t, bool, int64_t, int64_t>> found;
  for (const Migration& migration : result.migrations) {
    found.emplace_back(migration.tensor, migration.is_fetch, migration.begin_ns, migration.end_ns);
  }
  EXPECT_EQ(found, expected);
}

TEST(SimulatorTest, WhatIsUnderWayAtTheBorderIsSeenOnBothSides) {
  // The last op writes tensor 1, which begins to leave as the period ends and comes back in op 1.
  Trace trace = two_in_turn();
  trace.ops[1].accesses[0].is_write = true;
  trace.ops.insert(trace.ops.begin(), {0, 100, {{0, false}}});
  trace.ops[1].accesses[0].is_write = false;
  const Plan plan = {{{1, 2, 1, 2}}, Victim::kFarthestNextUse};
  const Simulation result = simulate(trace, plan, byte_per_ns(20));
  EXPECT_EQ(result.step_ns, 300u);
  ASSERT_EQ(result.migrations.size(), 3u);
  EXPECT_EQ(result.migrations[0].begin_ns, 0);
  EXPECT_EQ(result.migrations[0].end_ns, 10);
  EXPECT_TRUE(result.migrations[1].is_fetch);
  EXPECT_EQ(result.migrations[1].begin_ns, 100);
  EXPECT_EQ(result.migrations[2].begin_ns, 300);
}

// Three tensors are used in turn, and there is room for two. By the plan each is away while the
// other two are there.
TEST(SimulatorTest, PlannedMovesHideBehindCompute) {
  Trace trace;
  trace.op_names = {"op"};
  Plan plan;
  for (uint32_t tensor = 0; tensor < 3; ++tensor) {
    trace.ops.push_back({0, 100, {{tensor, true}}});
    trace.tensors.push_back({10, kNoTick, kNoTick});
    // The tensor leaves after its op and comes back while the op before its own runs.
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

/// A naive model of how victims are picked without a plan. Its moves take no time, and for each
/// victim it looks at every tensor and every op.
class NaiveCache {
 public:
  NaiveCache(const Trace& trace, Victim rule, uint64_t budget_bytes)
      : trace_(trace),
        rule_(rule),
        budget_bytes_(budget_bytes),
        is_resident_(trace.tensors.size(), false),
        is_cold_(trace.tensors.size(), false),
        last_use_(trace.tensors.size(), 0) {}

  /// The victims of the third period, in order.
  std::vector<uint32_t> victims() {
    for (uint32_t tensor = 0; tensor < trace_.tensors.size(); ++tensor) {
      if (!trace_.tensors[tensor].is_persistent()) continue;
      const bool has_room = used_bytes() + trace_.tensors[tensor].bytes <= budget_bytes_;
      (has_room ? is_resident_ : is_cold_)[tensor] = true;
    }
    for (int period = 0; period < 3; ++period) {
      victims_.clear();
      for (Tick tick = 0; tick < trace_.tick_count(); ++tick) run_tick(tick);
    }
    return victims_;
  }

 private:
  bool is_named(uint32_t tensor, Tick tick) const {
    const auto& accesses = trace_.ops[tick].accesses;
    return trace_.tensors[tensor].allocated_at == tick ||
           std::any_of(accesses.begin(), accesses.end(),
                       [&](const TraceAccess& access) { return access.tensor == tensor; });
  }

  uint64_t used_bytes() const {
    uint64_t bytes = trace_.fixed_bytes;
    for (uint32_t tensor = 0; tensor < is_resident_.size(); ++tensor) {
      if (is_resident_[tensor]) bytes += trace_.tensors[tensor].bytes;
    }
    return bytes;
  }

  uint64_t score(uint32_t tensor) const {
    if (rule_ == Victim::kLeastRecentlyUsed) return now_ - last_use_[tensor];
    const Tick count = trace_.tick_count();
    Tick ahead = 1;
    while (!is_named(tensor, (tick_ + ahead) % count)) ++ahead;
    if (trace_.tensors[tensor].allocated_at == (tick_ + ahead) % count) {
      return (trace_.tensors[tensor].freed_at + count - tick_) % count;  // its room until its end
    }
    return ahead % count;  // a tensor that only this op names was just needed
  }

  void make_room(uint64_t bytes, bool is_running) {
    while (used_bytes() + bytes > budget_bytes_) {
      std::optional<uint32_t> best;
      for (uint32_t tensor = 0; tensor < is_resident_.size(); ++tensor) {
        if (!is_resident_[tensor] || (is_running && is_named(tensor, tick_))) continue;
        if (!best || score(tensor) > score(*best)) best = tensor;
      }
      if (!best) return;
      victims_.push_back(*best);
      is_resident_[*best] = false;
      is_cold_[*best] = true;
    }
  }

  void come(uint32_t tensor) {
    make_room(trace_.tensors[tensor].bytes, true);
    is_resident_[tensor] = true;
    is_cold_[tensor] = false;
  }

  void run_tick(Tick tick) {
    tick_ = tick;
    ++now_;
    for (const TraceAccess& access : trace_.ops[tick].accesses) {
      if (is_cold_[access.tensor]) come(access.tensor);
    }
    for (uint32_t tensor = 0; tensor < is_resident_.size(); ++tensor) {
      if (trace_.tensors[tensor].allocated_at == tick) come(tensor);
      if (is_named(tensor, tick)) last_use_[tensor] = now_;
    }
    for (uint32_t tensor = 0; tensor < is_resident_.size(); ++tensor) {
      if (trace_.tensors[tensor].freed_at != tick) continue;
      is_resident_[tensor] = is_cold_[tensor] = false;
    }
    make_room(0, false);
  }

  const Trace& trace_;
  const Victim rule_;
  const uint64_t budget_bytes_;
  std::vector<bool> is_resident_;
  std::vector<bool> is_cold_;
  std::vector<uint64_t> last_use_;
  std::vector<uint32_t> victims_;
  uint64_t now_ = 0;
  Tick tick_ = 0;
};

TEST(SimulatorTest, ChoosesTheVictimsThatALookAtAllChooses) {
  Random random;
  for (int round = 0; round < 2000; ++round) {
    const Trace trace = random_trace(random, {.ops = 12, .tensors = 10});
    const std::vector<uint64_t> bytes = trace.bytes_by_tick();
    const uint64_t most = *std::max_element(bytes.begin(), bytes.end());
    const Machine no_time = {.budget_bytes = random.between(most / 3, most),
                             .read_bytes_per_s = 1e30,
                             .write_bytes_per_s = 1e30};
    for (const Victim rule : {Victim::kLeastRecentlyUsed, Victim::kFarthestNextUse}) {
      std::vector<uint32_t> victims;
      for (const PlannedMove& move : simulate(trace, Plan{{}, rule}, no_time).moves) {
        victims.push_back(move.tensor);
      }
      ASSERT_EQ(victims, NaiveCache(trace, rule, no_time.budget_bytes).victims())
          << "round " << round;
    }
  }
}

TEST(SimulatorTest, WhoIsFreedSoonStays) {
  // Tensor 2 is not used after op 0, and freed before tensor 1 is needed. Writing it would gain
  // only a little room, which is free in a moment anyway.
  Trace trace;
  trace.op_names = {"op"};
  for (int tick = 0; tick < 4; ++tick) trace.ops.push_back({0, 100, {{0, false}}});
  trace.ops[3].accesses.push_back({1, false});
  trace.tensors = {{10, kNoTick, kNoTick}, {10, kNoTick, kNoTick}, {10, 0, 1}, {10, 1, 1}};
  const Simulation result = simulate(trace, Plan{}, byte_per_ns(30, false));
  ASSERT_EQ(result.moves.size(), 1u);
  EXPECT_EQ(result.moves[0].tensor, 1u);
}

TEST(SimulatorTest, MovingTakesProcessorTime) {
  Trace trace;
  trace.op_names = {"op"};
  trace.ops = {{0, 100, {{0, true}}}, {0, 100, {{1, false}}}};
  trace.tensors = {{10, kNoTick, kNoTick}, {10, kNoTick, kNoTick}};
  Machine machine = byte_per_ns(10, false);
  const Simulation free_of_charge = simulate(trace, Plan{}, machine);
  machine.read_work_ns_per_byte = 1;
  machine.write_work_ns_per_byte = 2;
  machine.drop_work_ns_per_byte = 0.5;
  const Simulation result = simulate(trace, Plan{}, machine);
  // Both are read, tensor 0 is written, both leave.
  EXPECT_EQ(result.work_ns, 20u + 2 * 10 + 20 / 2);
  EXPECT_EQ(result.step_ns, free_of_charge.step_ns + result.work_ns);
  EXPECT_EQ(result.total_stall_ns(), free_of_charge.total_stall_ns());
}

Plan random_plan(Random& random, const Trace& trace) {
  Plan plan;
  plan.otherwise = random.chance(0.5) ? Victim::kLeastRecentlyUsed : Victim::kFarthestNextUse;
  for (const Gap& gap : gaps_of(trace)) {
    if (random.chance(0.5)) continue;
    PlannedMove move{gap.tensor, gap.after, kNoTick, gap.before};
    if (gap.comes_back()) {
      const Tick count = trace.tick_count();
      const Tick length = (gap.before + count - gap.after - 1) % count + 1;
      move.fetch_at = (gap.after + static_cast<Tick>(random.between(1, length))) % count;
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
    // Every tensor that came back had left; one that left was written then or earlier.
    uint64_t left = 0;
    for (const PlannedMove& move : result.moves) left += trace.tensors[move.tensor].bytes;
    EXPECT_EQ(left, result.bytes_written + result.bytes_dropped);
    // A link carries one tensor at a time, and all its reads and writes are listed.
    std::array<int64_t, 2> free_ns = {std::numeric_limits<int64_t>::min(),
                                      std::numeric_limits<int64_t>::min()};
    std::array<uint64_t, 2> carried = {0, 0};
    for (const Migration& migration : result.migrations) {
      if (migration.begin_ns == migration.end_ns) continue;
      int64_t& link_free_ns = free_ns[migration.is_fetch && !limits.is_half_duplex ? 1 : 0];
      EXPECT_GE(migration.begin_ns, link_free_ns) << "two at a time";
      link_free_ns = migration.end_ns;
      carried[migration.is_fetch ? 1 : 0] += trace.tensors[migration.tensor].bytes;
    }
    EXPECT_GE(carried[0], result.bytes_written);
    EXPECT_GE(carried[1], result.bytes_read);
    const Simulation again = simulate(trace, plan, limits);
    EXPECT_EQ(again.begin_ns, result.begin_ns) << "not a function of its arguments";
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tencache
