// SPDX-License-Identifier: Apache-2.0
//
// How long each op of a period computes, to the begin of the next one, without waiting for memory.
//
// Where ops are done when they return, the host's clock tells: the lesser of the last two
// repetitions, since what else the machine did only makes an op longer. Where they are only queued,
// the device tells, of some of them (engine/gate/op_timer.h): then an op takes the median of what
// was measured of it in the last repetitions. One that was not measured yet takes the mean of those
// in the period that have its digest; else the time that those of its name take for as many bytes
// as it names, over the least that any op takes; else the mean of all. Pure functions of the
// stream.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "learn/period.h"
#include "learn/tick_stream.h"

namespace tencache {

/// By tick of the period, whose place is the later of two copies.
std::vector<uint64_t> compute_times(const TickStream& stream, const PeriodPlace& place,
                                    const TimestampLine& clock);

}  // namespace tencache
