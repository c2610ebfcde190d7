// SPDX-License-Identifier: Apache-2.0
//
// fetch_when_room: a schedule of fetches for machines on which bytes come from the disk, or more
// bytes must come than computing gives time for. Fetches go in the order of their deadlines, each
// as early as the budget has room for it until its op. Then the device is full of what is needed
// next, and so is host memory below it: reading from disk begins as soon as anything at all is
// given up, and goes on without a pause.
//
// A pure function. Its time is linear in the gaps times the bins that they last.
#pragma once

#include <vector>

#include "learn/bin_timeline.h"
#include "learn/plan.h"
#include "learn/trace.h"

namespace tencache {

/// Gives each chosen gap the op at which its fetch may start: the first one from which on the bytes
/// fit into the budget, beside what else is there by this schedule. Deadlines count from the moment
/// at which most is away. REQUIRES: the gaps are of gaps_of(trace), the timeline is the trace's.
Plan fetch_when_room(const Trace& trace, uint64_t budget_bytes, const BinTimeline& timeline,
                     std::vector<Gap> chosen);

}  // namespace tencache
