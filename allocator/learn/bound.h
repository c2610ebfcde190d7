// SPDX-License-Identifier: Apache-2.0
//
// bound_step_ns: how fast a period can be at best under any plan. A measured step is compared with
// it.
#pragma once

#include <cstdint>

#include "learn/plan.h"
#include "learn/trace.h"

namespace tencache {

/// The fewest bytes per period that any schedule must read back under this budget. Tensors may
/// leave in part here, which makes the problem exactly solvable: whenever the budget is exceeded,
/// the bytes that are needed last leave (Belady's rule, fraction by fraction). What is freed before
/// its next use leaves first, because it never comes back.
uint64_t bound_bytes_read(const Trace& trace, uint64_t budget_bytes);

/// No schedule is faster than this, in the long run and within the budget. `machine` may have one
/// tier below the device or two, and links that carry both directions at once or in turn.
///
/// A schedule keeps what was written: bytes may be dropped from the device only if a tier below has
/// them. An op's tensors are on the device while it computes. Let B be the budget and H the host
/// memory, or 0. The proof takes each limit by itself.
///
/// Whole period. Device and host memory together are a cache of B + H bytes in front of the disk,
/// and the device is one of B bytes in front of what lies below it. No cache of that size reads
/// less than bound_bytes_read().
///
/// Window. It lasts from the moment at which the op before it ends to the moment at which its last
/// op ends.
///  - Reads. At its start at most B bytes are on the device, and those that the op before it names
///    are among them. So of the bytes that the window names and does not allocate, only what fits
///    beside those is there. The others are read, before the last op computes.
///  - Writes. Take the tensors that the window writes or allocates and that exist when its last op
///    ends. At that moment at most B bytes are on the device, and those that the last op names are
///    among them. What does not fit beside those is below. A copy from before the window is
///    stale, so a new one was written in the window, after its first op.
///  - Disk. Both counts hold here, too, with B + H bytes for what need not be on the disk.
/// A link takes the bytes over its speed; one that is half duplex takes the sum for reads and
/// writes. Nothing that moves in one window moves in the next, so the times of consecutive windows
/// add up to the longest sequence of windows (learn/window_bound.h). The bound is that, or the
/// longest of the times for the whole period.
///
/// Processor time. An op computes as long as it would if nothing moved, and what moves takes its
/// processor time from the program, unless the program waits meanwhile. So a period takes at least
/// computing and the processor time of the least bytes together: those of bound_bytes_read(), and
/// those that the windows must write. In the long run as many leave as are read.
///
/// Waits hide some of that time, but no more than a busy link can cause. Let p be the most that a
/// link can cause in a second by reading and writing. Of T seconds, (1 - p) T are free of it. So a
/// period takes at least the processor time of reading and writing the least bytes, and besides,
/// for each window, computing or (1 - p) times its links' time. (Letting go of what has a copy
/// below is not counted here, because no link limits it.)
///
/// The bound leaves out that a link idles while there is no room, the costs per move, and what disk
/// and host memory cost the processor.
uint64_t bound_step_ns(const Trace& trace, const Machine& machine);

}  // namespace tencache
