// SPDX-License-Identifier: Apache-2.0
//
// Planner: from a trace and a machine to a plan. A pure function. It makes several plans, lets the
// simulator play each, and returns the one that takes the least time.
//
//   1. Which gaps to use. Greedy by benefit over cost, on a timeline of link time that is
//      reserved pick by pick (TERAIO, section 3.2): the benefit of a period is the excess of bytes
//      over the budget that it takes away, times how long; its cost is the time on the links. What
//      cannot be hidden behind compute is used only when nothing else is left. Or by Belady's rule:
//      whoever is needed last leaves. Or none, and whoever leaves does so when room is short.
//   2. When to fetch. As late as the links allow, from the last deadline backwards, then earlier by
//      a margin where there is room.
//   3. Feedback (Capuchin, section 5): what came late in the simulation is fetched earlier.
//
// The time of one call grows with ticks and gaps about linearly: intervals are looked at
// through at most kBinsMax bins of time, most of them kBlockBins at once. Memory is linear.
#pragma once

#include <cstdint>

#include "learn/plan.h"
#include "learn/simulator.h"
#include "learn/trace.h"

namespace tencache {

struct Planned {
  Plan plan;
  Simulation simulation;  // of the plan
};

/// REQUIRES: trace.validate() is ok; the bandwidths are above 0.
Planned make_plan(const Trace& trace, const Machine& machine);

}  // namespace tencache
