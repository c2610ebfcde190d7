// SPDX-License-Identifier: Apache-2.0
#include "learn/stall_free_budget.h"

#include <algorithm>

#include "learn/planner.h"

namespace tencache {
namespace {

// How close the search comes to the smallest budget, as a part of the peak.
constexpr uint64_t kStepsOfPeak = 32;

}  // namespace

bool is_stall_free(const Simulation& simulation, double stall_share_max) {
  return static_cast<double>(simulation.total_stall_ns()) <=
         stall_share_max * static_cast<double>(simulation.compute_ns);
}

uint64_t stall_free_budget(const Trace& trace, Machine machine, double stall_share_max,
                           const std::function<bool()>& may_go_on) {
  const uint64_t peak = trace.peak_bytes();
  uint64_t low = std::max(machine.budget_bytes, trace.largest_op_bytes());
  // With all of the peak nothing leaves and nothing waits, so `high` is always stall-free.
  uint64_t high = std::max(low, peak);
  while (high - low > std::max<uint64_t>(1, peak / kStepsOfPeak)) {
    if (!may_go_on()) return 0;
    const uint64_t middle = low + (high - low) / 2;
    machine.budget_bytes = middle;
    if (is_stall_free(make_plan(trace, machine).simulation, stall_share_max)) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return high;
}

}  // namespace tencache
