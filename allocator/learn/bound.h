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
/// add up. The bound is the longest sequence of windows (learn/window_bound.h), or the whole
/// period.
///
/// Processor time. Let W be what the bytes of the two counts cost the processor, over the whole
/// period. A window takes at least as long as computing and the processor time of what passes in it
/// together, and at least as long as its links take. Let p be the most processor time that a link
/// can cause in a second: then of a window of T seconds, at least (1 - p) T are left without it. So
/// a period also takes at least W, and for each window the longer of computing and 1 - p times its
/// links' time.
///
/// The bound leaves out that a link idles while there is no room, the costs per move, and the
/// processor time of letting go what has a copy below.
uint64_t bound_step_ns(const Trace& trace, const Machine& machine);

}  // namespace tencache
