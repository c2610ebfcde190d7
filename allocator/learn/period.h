// SPDX-License-Identifier: Apache-2.0
//
// Period: what a stream of ticks repeats. A period is found when the stream ends in two copies of
// it: the same ops with accesses of the same sizes, and the same extents or extents that were
// allocated at the same place of their copy. The latter tells a repetition from layers that only
// look alike: those use different parameters.
//
// With step marks a period reaches from mark to mark, over as few steps as repeat (two where two
// optimizers take turns). Without marks (inference, hand-written updates) it is the shortest
// repetition at the end of the stream that is worth planning for.
//
// In a Period extents have become tensors of a Trace: one that is there all the time, or one for
// all the extents that are allocated at one place of each copy. Pure functions of the stream.
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
  std::vector<uint64_t> extent_ids;  // by tensor; 0 for those that are allocated in the period

  /// Whether both are the same ops on the same extents, so that tensors have the same numbers.
  bool is_same_kind(const Period& other) const {
    return digests == other.digests && extent_ids == other.extent_ids;
  }
  /// Whether an op is the one at `tick`: by its digest and by the extents that are always there.
  /// `id_at(index)` is the id of the extent that the op names at that place.
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
  /// The same, or the same loop seen from another of its ticks.
  bool is_same_loop(const Period& other) const;
};

/// Where the later of two copies is.
struct PeriodPlace {
  uint64_t begin = 0;
  uint64_t length = 0;
};

/// The period that ends at the last mark; nullopt when no few steps repeat there.
std::optional<PeriodPlace> find_marked_period(const TickStream& stream);

// The last tick of a stream may still be running: what its op allocates is not there yet. So the
// two below look at what comes before it. (A mark comes after its step's last op.)

/// Repetitions at the end of the stream, the shortest first, not reaching back before `since`.
std::vector<PeriodPlace> find_repeats(const TickStream& stream, uint64_t since);

/// The newest place at which the stream holds two copies of the period in a row, if it is not
/// further back than one more copy: the same ops on the same extents, as far as they are always
/// there. (Layers of one size look alike by their digests, and so does the loop over them when it
/// is seen from another of its ticks.)
std::optional<PeriodPlace> find_copies(const TickStream& stream, const Period& period);

/// Nullopt when the extents of the copy and of the one before it do not correspond.
std::optional<Period> build_period(const TickStream& stream, const PeriodPlace& place,
                                   const Recorder& recorder);

}  // namespace tencache
