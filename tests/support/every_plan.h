// SPDX-License-Identifier: Apache-2.0
//
// EveryPlan: the best of all plans of a small trace, found by playing each. A plan uses any of the
// gaps, and each fetch may start at any op of its gap. Moves at one op have one order only, so a
// plan that orders them otherwise can be a little better. A plan whose period does not end as it
// began cannot be followed in every period, so the others come first.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "learn/plan.h"
#include "learn/simulator.h"
#include "learn/trace.h"
#include "support/simulate.h"

namespace tencache {

class EveryPlan {
 public:
  EveryPlan(const Trace& trace, const Machine& machine, uint64_t copy_ahead_bytes = 0)
      : trace_(trace), machine_(machine), gaps_(gaps_of(trace)) {
    plan_.copy_ahead_bytes = copy_ahead_bytes;
  }

  uint64_t count() const {
    uint64_t count = 1;
    for (const Gap& gap : gaps_) count *= 1 + choices(gap);
    return count;
  }
  /// Returns the plan's rank; the best plan has the least one. Steady plans come before others,
  /// then those that exceed the budget less, then those that take less time.
  static std::tuple<bool, uint64_t, uint64_t> rank(const Simulation& simulation) {
    return {!simulation.is_steady, simulation.over_budget_bytes, simulation.step_ns};
  }
  /// The simulation of the best of all plans.
  Simulation best() {
    best_ = simulate(trace_, plan_, machine_);
    extend(0);
    return best_;
  }

 private:
  uint64_t choices(const Gap& gap) const {
    if (!gap.comes_back()) return 1;
    const Tick count = trace_.tick_count();
    return (gap.before + count - gap.after - 1) % count + 1;
  }

  void extend(size_t index) {
    if (index == gaps_.size()) {
      const Simulation simulation = simulate(trace_, plan_, machine_);
      if (rank(simulation) < rank(best_)) best_ = simulation;
      return;
    }
    extend(index + 1);
    const Gap& gap = gaps_[index];
    for (uint64_t choice = 1; choice <= choices(gap); ++choice) {
      PlannedMove move{gap.tensor, gap.after, kNoTick, gap.before};
      if (gap.comes_back()) {
        move.fetch_at = (gap.after + static_cast<Tick>(choice)) % trace_.tick_count();
      }
      plan_.moves.push_back(move);
      extend(index + 1);
      plan_.moves.pop_back();
    }
  }

  const Trace& trace_;
  const Machine& machine_;
  const std::vector<Gap> gaps_;
  Plan plan_;
  Simulation best_;
};

}  // namespace tencache
