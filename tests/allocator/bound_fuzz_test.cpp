// SPDX-License-Identifier: Apache-2.0
//
// The bound against plans at random, on machines at random: one tier below the device or two, links
// that carry both directions at once or in turn, moves with and without processor time. No plan may
// be faster. TENCACHE_TEST_PLANS says how many plans are played.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/sanitizers.h"
#include "learn/bound.h"
#include "learn/planner.h"
#include "support/every_plan.h"
#include "support/random_trace.h"
#include "support/simulate.h"

namespace tencache {
namespace {

constexpr int kPlansPerMachine = 10;

uint64_t plan_count() {
  if (const char* text = std::getenv("TENCACHE_TEST_PLANS")) return strtoull(text, nullptr, 10);
  return kHasSanitizer ? 400 : 3000;
}

/// A random speed at which a byte takes a whole number of nanoseconds, so that times are not
/// rounded down much.
double random_speed(Random& random, uint64_t ns_per_byte_max) {
  return 1e9 / static_cast<double>(random.between(1, ns_per_byte_max));
}

/// A random processor time of a byte, in eighths of a nanosecond.
double random_work(Random& random, uint64_t eighths_max) {
  return static_cast<double>(random.between(0, eighths_max)) / 8;
}

Machine random_machine(Random& random, const Trace& trace) {
  const uint64_t least = trace.largest_op_bytes();
  const uint64_t peak = trace.peak_bytes();
  Machine machine = byte_per_ns(random.between(least, std::max(least, peak)));
  machine.read_bytes_per_s = random_speed(random, 4);
  machine.write_bytes_per_s = random_speed(random, 4);
  if (random.chance(0.5)) {
    machine.read_work_ns_per_byte = random_work(random, 8);
    machine.write_work_ns_per_byte = random_work(random, 8);
    machine.drop_work_ns_per_byte = random_work(random, 8);
  }
  machine.is_half_duplex = random.chance(0.3);
  if (machine.is_half_duplex && random.chance(0.5)) machine.gain_of_both = 1.5;
  if (machine.is_half_duplex || random.chance(0.5)) return machine;
  uint64_t largest = 0;
  for (const TraceTensor& tensor : trace.tensors) largest = std::max(largest, tensor.bytes);
  machine.host_headroom_bytes = random.chance(0.5) ? 0 : random.between(1, largest);
  machine.host_bytes =
      machine.host_headroom_bytes + random.between(largest, std::max(largest, peak / 2));
  machine.disk_read_bytes_per_s = random_speed(random, 8);
  machine.disk_write_bytes_per_s = random_speed(random, 8);
  return machine;
}

Machine without_work(Machine machine) {
  machine.read_work_ns_per_byte = 0;
  machine.write_work_ns_per_byte = 0;
  machine.drop_work_ns_per_byte = 0;
  return machine;
}

Plan random_plan(Random& random, const Trace& trace, const std::vector<Gap>& gaps) {
  Plan plan;
  plan.otherwise = random.chance(0.7) ? Victim::kFarthestNextUse : Victim::kLeastRecentlyUsed;
  const double share = static_cast<double>(random.between(0, 4)) / 4;
  const Tick count = trace.tick_count();
  for (const Gap& gap : gaps) {
    if (!random.chance(share)) continue;
    PlannedMove move{gap.tensor, gap.after, kNoTick, gap.before};
    if (gap.comes_back()) {
      const Tick length = (gap.before + count - gap.after - 1) % count + 1;
      move.fetch_at = (gap.after + static_cast<Tick>(random.between(1, length))) % count;
    }
    plan.moves.push_back(move);
  }
  return plan;
}

/// Whether the bound applies to the simulation, which it does within the budget and in the long
/// run.
bool is_schedule(const Simulation& simulation) {
  return simulation.over_budget_bytes == 0 && simulation.is_steady;
}

// What rounding may take off: each move's time is rounded down to whole nanoseconds, perhaps on
// three links.
uint64_t rounding_ns(const Simulation& simulation) { return 4 * simulation.migrations.size() + 4; }

TEST(BoundFuzzTest, NoPlanIsFaster) {
  const uint64_t wanted = plan_count();
  uint64_t played = 0;
  for (uint64_t round = 0; played < wanted && round < wanted; ++round) {
    Random random(round);
    const Trace trace =
        random_trace(random, {.ops = static_cast<Tick>(random.between(4, 20)),
                              .tensors = static_cast<uint32_t>(random.between(3, 12)),
                              .bytes_max = 1000,
                              .compute_ns_max = random.chance(0.2) ? 0u : 2000u});
    const Machine machine = random_machine(random, trace);
    const uint64_t bound_ns = bound_step_ns(trace, machine);
    const uint64_t bound_without_work_ns = bound_step_ns(trace, without_work(machine));
    const std::vector<Gap> gaps = gaps_of(trace);
    for (int number = 0; number < kPlansPerMachine; ++number) {
      const Simulation simulation =
          number == 0 ? make_plan(trace, machine).simulation
                      : simulate(trace, random_plan(random, trace, gaps), machine);
      if (!is_schedule(simulation)) continue;
      ++played;
      // Fractions of periods are rounded down, by less than one byte a period.
      ASSERT_LE(bound_bytes_read(trace, machine.budget_bytes), simulation.bytes_read)
          << "round " << round << ", plan " << number;
      ASSERT_LE(bound_ns, simulation.step_ns + rounding_ns(simulation))
          << "round " << round << ", plan " << number << ", host " << machine.host_bytes;
      ASSERT_LE(bound_without_work_ns,
                simulation.step_ns - simulation.work_ns + rounding_ns(simulation))
          << "round " << round << ", plan " << number << ", host " << machine.host_bytes;
    }
  }
  EXPECT_GE(played, wanted);
}

// The best of all plans is a schedule, too; the bound should come near the time that it takes.
TEST(BoundFuzzTest, TheBestOfAllPlansIsNotFaster) {
  Random random;
  double ratio_sum = 0;
  int count = 0;
  for (int tries = 0; tries < 1000 && count < (kHasSanitizer ? 20 : 60); ++tries) {
    const Trace trace =
        random_trace(random, {.ops = 8, .tensors = 5, .bytes_max = 1000, .compute_ns_max = 2000});
    const Machine machine = random_machine(random, trace);
    EveryPlan every(trace, machine);
    if (every.count() > 5000) continue;
    const Simulation best = every.best();
    if (!is_schedule(best)) continue;
    ++count;
    const uint64_t bound_ns = bound_step_ns(trace, machine);
    ASSERT_LE(bound_ns, best.step_ns + rounding_ns(best)) << "try " << tries;
    ratio_sum += static_cast<double>(best.step_ns) / static_cast<double>(bound_ns);
  }
  ASSERT_GE(count, 10);
  std::printf("%d traces: the best plan takes %.3f times the bound on average\n", count,
              ratio_sum / count);
}

}  // namespace
}  // namespace tencache
