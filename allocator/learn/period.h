// SPDX-License-Identifier: Apache-2.0
//
// Period: the ticks that a stream repeats. A period is found when the stream ends in two copies of
// it: the same ops with accesses of the same sizes, to the same extents or to extents that were
// allocated at the same place of their copy. The extents tell a repetition from layers that only
// look alike, which use different parameters.
//
// With step marks a period reaches from mark to mark, over as few steps as repeat (two where two
// optimizers take turns). Without marks (inference, hand-written updates) it is the shortest
// repetition at the end of the stream that is worth planning for.
//
// In a Period, extents have become tensors of a Trace: a tensor is one extent that is always there,
// or all the extents that are allocated at one place of each copy. Pure functions of the stream.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "learn/recorder.h"
#include "learn/tick_stream.h"
#include "learn/trace.h"

namespace tencache {

struct Period {
  Trace trace;                       // accesses in the order in which the gate sees them
  std::vector<uint64_t> digests;     // by tick
  std::vector<uint64_t> extent_ids;  // by tensor; 0 if allocated in the period

  /// Whether both are the same ops on the same extents, so that tensors have the same numbers.
  bool is_same_kind(const Period& other) const {
    return digests == other.digests && extent_ids == other.extent_ids;
  }
  /// Whether an op is the one at `tick`, by its digest and by the extents that are always there.
  /// `id_at(index)` is the id of the extent at that place among the op's accesses.
  template <typename IdAt>
  bool agrees(Tick tick, uint64_t digest, size_t access_count, IdAt id_at) const {
    const std::vector<TraceAccess>& accesses = trace.ops[tick].accesses;
    if (digest != digests[tick] || access_count != accesses.size()) return false;
    for (size_t index = 0; index < accesses.size(); ++index) {
      const uint64_t expected_id = extent_ids[accesses[index].tensor];
      if (expected_id != 0 && id_at(index) != expected_id) return false;
    }
    return true;
  }
  /// Whether it is of the same kind, or the same loop seen from another of its ticks.
  bool is_same_loop(const Period& other) const;
};

/// The place of the later of two copies.
struct PeriodPlace {
  uint64_t begin = 0;
  uint64_t length = 0;
};

/// The period that ends at the last mark. Nullopt when no small number of steps repeats there.
std::optional<PeriodPlace> find_marked_period(const TickStream& stream);

// The last tick of a stream may still be running, and may not have allocated everything yet. So the
// two functions below look at what comes before it. (A mark comes after its step's last op.)

/// The repetitions at the end of the stream, shortest first, not reaching back before `since`.
std::vector<PeriodPlace> find_repeats(const TickStream& stream, uint64_t since);

/// The newest place at which the stream holds two consecutive copies of the period, at most one
/// more copy back. They must have the same ops and, of the extents that are always there, the same
/// ones. (Layers of one size look alike by their digests, and so does the loop over them when it is
/// seen from another of its ticks.)
std::optional<PeriodPlace> find_copies(const TickStream& stream, const Period& period);

/// Nullopt when the extents of the two copies do not correspond.
std::optional<Period> build_period(const TickStream& stream, const PeriodPlace& place,
                                   const Recorder& recorder);

}  // namespace tencache
