// SPDX-License-Identifier: Apache-2.0
//
// make_plan: makes several plans for a trace and a machine, lets the simulator play each, and
// returns the one that takes the least time. It is a pure function.
//
//   1. Which gaps to use. They are chosen greedily by benefit over cost, with two ways to charge
//      writes (learn/gap_choice.h), or by Belady's rule: the tensor that is needed last leaves. Or
//      no gap is planned, and tensors leave when room is short.
//   2. When to fetch. Fetches start as late as the links allow, from the last deadline backwards,
//      then earlier by a margin where there is room.
//   3. Feedback (Capuchin, section 5): what came late in the simulation is fetched earlier.
//   4. Steps 1 to 3 follow again, on a timeline that includes the best plan's waits.
//   5. Where the program waits all the same, fetches go in the order of their deadlines: as early
//      as there is room (learn/early_fetches.h), or only a little ahead (learn/near_fetches.h).
//   6. Where a disk lies below host memory, tensors are copied to it ahead of need.
//   7. Gaps are chosen anew, by the prices that the links' time then has (learn/link_prices.h).
//   8. The best plan's moves are changed, one by one or several at once, as long as time allows
//      (learn/local_search.h).
//
// A plan that does not wait, or is as fast as the bound (learn/bound.h), ends the search between
// two of these steps.
//
// A call takes time about linear in ticks and gaps, because gaps are looked at through at most
// kBinsMax bins of time, mostly kBlockBins at once. Memory is linear.
#pragma once

#include <cstdint>

#include "learn/plan.h"
#include "learn/simulator.h"
#include "learn/trace.h"

namespace tencache {

/// REQUIRES: trace.validate() is ok; the link's bandwidths are above 0, and the disk's
/// where there is one.
Planned make_plan(const Trace& trace, const Machine& machine);

}  // namespace tencache
