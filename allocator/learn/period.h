// SPDX-License-Identifier: Apache-2.0
//
// Period: the ticks that a program repeats, in the form in which they are planned and followed.
// Extents have become tensors of a Trace: a tensor is one extent that is always there, or all the
// extents that are allocated at one place of each repetition.
//
// A period is made from one copy (learn/period_builder.h), so part of it is a guess until the
// program repeats it. Whoever follows it compares every tick.
//
// A period of an earlier run is stored: its ops and sizes are known, but its extents lived in that
// run. Which ones stand for the tensors that are always there has to be found out anew.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "learn/trace.h"

namespace tencache {

/// The place of one copy of a period in a log.
struct PeriodPlace {
  uint64_t begin = 0;
  uint64_t length = 0;

  uint64_t end() const { return begin + length; }
};

/// The extent of a tensor that is always there, in a stored period before the program has named it.
inline constexpr uint64_t kUnknownExtent = ~uint64_t{0};

struct Period {
  Trace trace;                       // accesses in the order in which the gate sees them
  std::vector<uint64_t> digests;     // by tick
  std::vector<uint64_t> extent_ids;  // by tensor; 0 if another extent in each repetition
  // The bytes of the tensors that are others in each repetition, in the sizes of the copy from
  // which the period was made.
  uint64_t born_bytes = 0;
  // The smallest id of the extents that were allocated in that copy, or larger than any id where
  // there are none. Ids ascend, so those of later repetitions are larger.
  uint64_t first_born_id = ~uint64_t{0};

  /// Whether the period is stored, and part of its extents are not known yet.
  bool has_unknown_extents() const;
  /// Whether the op at `tick` names an extent that is always there.
  bool names_always_there(Tick tick) const;
  /// Whether both are the same ops on the same extents, and tensors have the same numbers. An
  /// extent that is not known yet may be any.
  bool is_same_kind(const Period& other) const;
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
  /// Whether both are the same loop, perhaps seen from different ticks of it, with the same extents
  /// that are always there.
  bool is_same_loop(const Period& other) const;
  /// Whether both are the same sequence of ops, perhaps from another tick on, and mostly on the
  /// same extents, where one that is not known yet may be any. Such periods are two guesses about
  /// one program.
  bool is_like(const Period& other) const;
  /// Whether nine in ten ops are the same, in whatever order, and mostly on the same extents, where
  /// one that is not known yet may be any. Such periods are one loop, seen from different ticks, in
  /// passes that differ a little.
  bool has_same_ops(const Period& other) const;
  /// Whether the other's sequence of ops is a part of this loop, on the same extents.
  bool contains(const Period& other) const;

 private:
  bool fits_at(const Period& other, size_t begin) const;
};

}  // namespace tencache
