// SPDX-License-Identifier: Apache-2.0
//
// Functions that search a log of ticks for periods. With step marks a period reaches from mark to
// mark, over as few steps as repeat (two where two optimizers take turns); before anything has
// repeated it is the last step. Without marks (inference, hand-written updates) it is the shortest
// repetition at the end of the log that is worth planning for. There the extents tell a repetition
// from layers that only look alike, which use different parameters.
//
// All functions here are pure functions of the log.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "learn/period.h"
#include "learn/tick_log.h"

namespace tencache {

/// The later of two equal periods in a row, if it ends at the last mark. Returns nullopt when no
/// small number of steps repeats there.
std::optional<PeriodPlace> find_marked_period(const TickLog& log);

/// What lies between the last two marks. Returns nullopt when there are no two, or nothing lies
/// there.
std::optional<PeriodPlace> last_segment(const TickLog& log);

/// The repetitions that end at `end`, shortest first, not reaching back before `since`. Each place
/// is the last copy. At least a good part of the copy before it was seen, with extents that both
/// name: half of a program's second pass tells as much as all of it. Extents that existed before
/// tick `old_before` tell places apart.
///
/// The last tick of a log may still be running, and may not have allocated everything yet. So
/// `end` should be before that tick, unless `end` is a mark: the tick before a mark has ended.
std::vector<PeriodPlace> find_repeats(const TickLog& log, uint64_t since, uint64_t end,
                                      uint64_t old_before);

/// The newest place before the last tick at which the log holds one copy of the period, at most
/// one copy back. It must have the same ops and, of the extents that are always there, the same
/// ones. (Layers of one size look alike by their digests, and so does the loop over them when it is
/// seen from another of its ticks.)
std::optional<PeriodPlace> find_copy(const TickLog& log, const Period& period);

/// Whether the place holds a copy of the period.
bool is_copy(const TickLog& log, const PeriodPlace& place, const Period& period);

/// How a part of a log, a segment, compares with a period that is nearly the same.
struct Comparison {
  double of_period = 0;                // the part of the period's ticks that the segment has, too
  double of_segment = 0;               // the part of the segment's ticks that the period has
  std::vector<PeriodPlace> additions;  // long sequences of other ticks within the segment
  bool has_replacements = false;       // one of them came in place of ticks of the period
};
Comparison compare(const TickLog& log, const PeriodPlace& segment, const Period& period);

}  // namespace tencache
