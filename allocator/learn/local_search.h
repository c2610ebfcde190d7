// SPDX-License-Identifier: Apache-2.0
//
// LocalSearch: a search that changes a plan step by step, plays each changed plan, and keeps the
// better one. Three kinds of change are tried.
//   1. Evictions that leave later. A link carries them in the order of the requests. An op that
//      waits for room waits for what was asked for before; where that is large, smaller tensors
//      that leave first are enough for it.
//   2. A gap that is used or not, and moments at which its fetch could start. Where there is a
//      disk, the plan is also tried without copies ahead of need, and with all of them. This kind
//      is for short periods only, where all gaps can be tried.
//   3. Several gaps at once, where no single one helps any more: room that one tensor gives lets
//      another come earlier, but by itself it only takes time. So the best plans that are one
//      change away are kept, though they are worse, then the best that are one change away from
//      those, and so on.
//
// The search ends where nothing is better, or when it has played so many ops that planning would
// become slow. It is a pure function: no clock tells it to end.
#pragma once

#include <vector>

#include "learn/plan.h"
#include "learn/simulator.h"
#include "learn/trace_index.h"

namespace tencache {

/// Makes the plan better, if it can. REQUIRES: the gaps are those of gaps_of(index.trace()), and
/// the plan's moves use some of them.
void improve_moves(const TraceIndex& index, const Machine& machine, const std::vector<Gap>& gaps,
                   Planned* best);

}  // namespace tencache
