// SPDX-License-Identifier: Apache-2.0
//
// Bound: how fast a period can be at best under any plan; a measured step is compared with it.
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

/// No schedule is faster than this. Computing takes its time, and so does reading those bytes. So
/// does each part of the period that names more bytes than the budget holds; an optimizer's step
/// computes little and names everything. Writes are not counted.
uint64_t bound_step_ns(const Trace& trace, const Machine& machine);

}  // namespace tencache
