// SPDX-License-Identifier: Apache-2.0
//
// build_period(): a period from one copy of it in a log. What became of each extent tells its
// role in the repetition. An extent that
//   - existed before the copy, and was not freed in it, is always there, or two such extents change
//     places (learn/extent_roles.h);
//   - was allocated and freed in the copy is another one in each repetition;
//   - existed before and was freed in it, like a gradient that zero_grad frees, has a successor.
//     That was allocated at the same place of this copy, and lives into the next repetition. The
//     ticks before the copy, as far as they were recorded, tell which place that is;
//   - was allocated in the copy, lives on and succeeds nothing was made once, as an optimizer makes
//     its state in the first step. From now on it is always there, and the ticks that only fill it
//     will not be repeated.
// A wrong guess shows when the next repetition does something else. A second copy right before the
// first leaves little to guess.
//
// What the functions return depends on their arguments alone.
#pragma once

#include <cstdint>
#include <optional>

#include "learn/period.h"
#include "learn/recorder.h"
#include "learn/tick_log.h"

namespace tencache {

/// The period. Returns nullopt when each of its ticks only fills, or when the events of several
/// threads came in a sequence that makes no sense.
std::optional<Period> build_period(const TickLog& log, const PeriodPlace& place,
                                   const Recorder& recorder);

/// The bytes allocated in the copy. They tell copies of different sizes apart before a period is
/// built. Unlike Period::born_bytes, they count what was made once and not what is exchanged.
uint64_t allocated_bytes(const TickLog& log, const PeriodPlace& place);

}  // namespace tencache
