// SPDX-License-Identifier: Apache-2.0
//
// fetch_near_use: a schedule of fetches for links that have more to carry than computing gives them
// time for. There each fetch is late, and an early one only takes room: what was fetched leaves
// again before its use (a thrash), and is read twice. So fetches go in the order of their
// deadlines, and at no time are more than a given number of bytes fetched or requested ahead of the
// op that runs.
//
// fetch_near_use() is a pure function, linear in the gaps, which it sorts.
#pragma once

#include <cstdint>
#include <vector>

#include "learn/plan.h"
#include "learn/trace.h"

namespace tencache {

/// Gives each chosen gap the op at which its fetch may start. That is the earliest op that needs a
/// fetch such that all fetches from that one to this have at most `ahead_bytes`. It is at the
/// latest the last earlier op that needs one, and never before the gap. REQUIRES: the gaps are of
/// gaps_of(trace).
Plan fetch_near_use(const Trace& trace, std::vector<Gap> chosen, uint64_t ahead_bytes);

}  // namespace tencache
