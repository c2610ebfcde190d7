// SPDX-License-Identifier: Apache-2.0
//
// Stall-free budget: how many bytes must be allowed so that a period hardly waits. It is found by
// bisection, each budget planned and played, so the search costs about five plans. The functions
// are pure.
//
// A larger budget may be planned slightly worse than a smaller one, since the planner's choice is
// greedy. So the result does hold, but a smaller budget may hold, too.
#pragma once

#include <cstdint>
#include <functional>

#include "learn/plan.h"
#include "learn/simulator.h"
#include "learn/trace.h"

namespace tencache {

/// Whether a period waits for at most this share of its computing time.
bool is_stall_free(const Simulation& simulation, double stall_share_max);

/// The smallest budget found that is stall-free and holds the largest op. The search goes from the
/// machine's budget, which is assumed to stall, to the trace's peak, and is exact to 1/32 of the
/// peak. `may_go_on` is asked before each plan; once it returns false, the result is 0. REQUIRES:
/// what make_plan() requires.
uint64_t stall_free_budget(const Trace& trace, Machine machine, double stall_share_max,
                           const std::function<bool()>& may_go_on);

}  // namespace tencache
