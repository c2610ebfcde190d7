// SPDX-License-Identifier: Apache-2.0
//
// GapChoice: which gaps a plan uses. The choice is greedy by benefit over cost, on a timeline of
// link time that is reserved pick by pick (TERAIO, section 3.2). The benefit of a gap is the excess
// of bytes over the budget that it removes, times how long it does so. Its cost is the time on the
// links and processor time. First come gaps whose moves computing hides, then whatever else is
// needed.
//
// A write can be charged in two ways. kOwnGap charges it to each gap that directly follows a write
// and to no other. kChain charges it to the first gap of a chain that is chosen
// (learn/write_chains.h); where none is, a gap may take an earlier one of its chain along, in which
// the link has the time to write. Neither is always better: kOwnGap is wrong about writes; kChain
// is right, and so spends more of the link's time on tensors with a copy.
//
// LinkPrices tell what a nanosecond of a link costs. At first all cost the same; where a plan
// leaves the link idle, they cost less.
//
// choose_gaps() is a pure function of its arguments, linear in ticks and gaps (learn/planner.h).
#pragma once

#include <vector>

#include "learn/bin_timeline.h"
#include "learn/link_prices.h"
#include "learn/plan.h"
#include "learn/trace.h"

namespace tencache {

enum class WriteCharge : uint8_t { kOwnGap, kChain };

/// REQUIRES: the gaps are those of gaps_of(trace); timeline and prices are the trace's.
std::vector<Gap> choose_gaps(const Trace& trace, const Machine& machine,
                             const BinTimeline& timeline, const std::vector<Gap>& gaps,
                             WriteCharge charge, const LinkPrices& prices = {});

}  // namespace tencache
