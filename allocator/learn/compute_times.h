// SPDX-License-Identifier: Apache-2.0
//
// compute_times(): how long each op of a period computes, to the start of the next one, without
// waiting for memory.
//
// An op takes the lower quartile of its times in the last repetitions, because what disturbs it,
// such as other work of the machine, only adds time. Where ops are done when they return, these
// are times by the host's clock. Where ops are only queued, the device measures some of them
// (engine/gate/op_timer.h). An op that it has not measured yet takes the first of these that is
// known:
//   - the mean of the ops in the period with the same digest and about as many bytes;
//   - the least that any op takes, plus what ops of its name take per byte beyond that;
//   - the mean of all ops.
// A pure function of its arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "learn/period.h"
#include "learn/tick_log.h"

namespace tencache {

/// Returns the time of each tick of the copy at `place`. `counterparts` names, for each tick, the
/// one before the copy that corresponds to it, or kUnknownTick.
std::vector<uint64_t> compute_times(const TickLog& log, const PeriodPlace& place,
                                    const std::vector<uint64_t>& counterparts,
                                    const TimestampLine& clock);

}  // namespace tencache
