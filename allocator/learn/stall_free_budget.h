// SPDX-License-Identifier: Apache-2.0
//
// Stall-free budget: how many bytes would have to be allowed so that a period hardly waits. Found
// by bisection, each budget planned and played, so it costs five plans or so. Pure functions.
//
// A larger budget may be planned slightly worse than a smaller one, since the planner's choice is
// greedy. So what is found does hold, but somewhere below it another one may, too.
#pragma once

#include <cstdint>
#include <functional>

#include "learn/plan.h"
#include "learn/simulator.h"
#include "learn/trace.h"

namespace tencache {

/// Whether a period waits for at most this share of the time that it computes.
bool is_stall_free(const Simulation& simulation, double stall_share_max);

/// The smallest budget found that is stall-free and holds the largest op. It is looked for between
/// the machine's, which is taken to wait for longer, and the trace's peak, to within 1/32 of the
/// peak. `may_go_on` is asked before each plan; 0 once it said no.
/// REQUIRES: as make_plan.
uint64_t stall_free_budget(const Trace& trace, Machine machine, double stall_share_max,
                           const std::function<bool()>& may_go_on);

}  // namespace tencache
