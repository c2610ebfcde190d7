// SPDX-License-Identifier: Apache-2.0
//
// The search for a stall-free budget. On random traces it agrees with a scan of every budget. A
// case was worked out by hand. The search ends when it is told to, and makes few plans.
#include "learn/stall_free_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/sanitizers.h"
#include "learn/planner.h"
#include "support/random_trace.h"

namespace tencache {
namespace {

constexpr double kStallShareMax = 0.01;

bool go_on() { return true; }

bool is_enough(const Trace& trace, Machine machine, uint64_t budget_bytes) {
  machine.budget_bytes = budget_bytes;
  return is_stall_free(make_plan(trace, machine).simulation, kStallShareMax);
}

TEST(StallFreeBudgetTest, StallsAreComparedWithComputing) {
  Simulation simulation;
  simulation.compute_ns = 1000;
  simulation.work_ns = 500;
  simulation.step_ns = 1510;
  EXPECT_TRUE(is_stall_free(simulation, 0.01));
  simulation.step_ns = 1511;
  EXPECT_FALSE(is_stall_free(simulation, 0.01));
  EXPECT_TRUE(is_stall_free(simulation, 0.02));
}

TEST(StallFreeBudgetTest, ThreeInTurnNeedTwoPlaces) {
  Trace trace;
  trace.op_names = {"op"};
  for (uint32_t tensor = 0; tensor < 3; ++tensor) {
    trace.ops.push_back({0, 100, {{tensor, false}}});
    trace.tensors.push_back({10, kNoTick, kNoTick});
  }
  // With a second place the next tensor arrives while the op computes on the first.
  EXPECT_EQ(stall_free_budget(trace, byte_per_ns(10), kStallShareMax, go_on), 20u);
  EXPECT_EQ(stall_free_budget(trace, byte_per_ns(10), 0.1, go_on), 11u) << "as near as it looks";
}

// The budget found is enough, and a little less is not. Where one budget separates those that are
// too small from those that are enough, the one found is at most a little larger.
TEST(StallFreeBudgetTest, AgreesWithAScanOfAllBudgets) {
  constexpr int kPartedMin = kHasSanitizer ? 1 : 12;
  constexpr int kRoundsMax = 500;
  Random random;
  int searched_count = 0;
  int parted_count = 0;
  for (int round = 0; parted_count < kPartedMin; ++round) {
    ASSERT_LT(round, kRoundsMax) << searched_count << " searched, " << parted_count << " parted";
    const RandomTraceShape shape{.ops = 12, .tensors = 6, .bytes_max = 40, .compute_ns_max = 60};
    const Trace trace = random_trace(random, shape);
    const uint64_t peak = trace.peak_bytes();
    const Machine machine = byte_per_ns(random.between(peak / 4, peak), random.chance(0.5));
    const uint64_t low = std::max(machine.budget_bytes, trace.largest_op_bytes());
    const uint64_t step = std::max<uint64_t>(1, peak / 32);
    const uint64_t found = stall_free_budget(trace, machine, kStallShareMax, go_on);
    ASSERT_GE(found, low);
    ASSERT_LE(found, peak);
    ASSERT_TRUE(is_enough(trace, machine, found)) << "round " << round;
    // The scan tries every budget.
    std::vector<uint64_t> enough;
    std::vector<uint64_t> too_small;
    for (uint64_t budget = low; budget <= peak; ++budget) {
      (is_enough(trace, machine, budget) ? enough : too_small).push_back(budget);
    }
    if (too_small.empty() || too_small.front() != low) {
      ASSERT_TRUE(is_enough(trace, machine, low));
      continue;  // the search assumes that `low` is too small
    }
    ++searched_count;
    const auto next = std::lower_bound(too_small.begin(), too_small.end(), found);
    ASSERT_LE(found - *std::prev(next), step) << "round " << round;
    if (too_small.back() > enough.front()) continue;
    ++parted_count;
    ASSERT_LE(found - enough.front(), step) << "round " << round;
  }
}

TEST(StallFreeBudgetTest, IsTheMachinesWhereThatIsEnoughForAll) {
  Random random;
  const Trace trace = random_trace(random, {});
  const uint64_t budget_bytes = 2 * trace.peak_bytes();
  EXPECT_EQ(stall_free_budget(trace, byte_per_ns(budget_bytes), kStallShareMax, go_on),
            budget_bytes);
}

TEST(StallFreeBudgetTest, EndsWhenItIsTold) {
  const Trace trace = transformer_trace({});
  const Machine machine = byte_per_ns(trace.largest_op_bytes());
  int asked = 0;
  EXPECT_EQ(stall_free_budget(trace, machine, kStallShareMax, [&] { return ++asked < 3; }), 0u);
  EXPECT_EQ(asked, 3);
}

TEST(StallFreeBudgetTest, MakesFivePlansAtMost) {
  const Trace trace = transformer_trace({});
  int plans = 0;
  const auto count = [&] { return ++plans > 0; };
  const Machine machine = byte_per_ns(trace.largest_op_bytes());
  const uint64_t found = stall_free_budget(trace, machine, kStallShareMax, count);
  EXPECT_GT(found, machine.budget_bytes);
  EXPECT_LE(found, trace.peak_bytes());
  EXPECT_LE(plans, 5);
}

}  // namespace
}  // namespace tencache
