// SPDX-License-Identifier: Apache-2.0
//
// SlotChecks: compares what cold extents show with the hash of what was written, where the program
// is about to read through their mappings, or has just done so. It reads the slots through the page
// cache, piece by piece, and so needs no room. Bytes that differ, or cannot be read, end the
// process (base/check.h fatal), as those of a fetch do.
//
// Private pages on top of a slot are the program's own and need no check.
//
// Threads: any. An extent belongs to the checking thread meanwhile; an op that needs it waits. In a
// forked child nothing moves, so nothing is claimed there, and no lock taken.
#pragma once

#include <span>

#include "engine/move/cpu/slot_fetches.h"
#include "engine/move/fork_latch.h"
#include "memory/extent.h"
#include "tier/cached_reader.h"
#include "tier/disk_tier.h"

namespace tencache {

class SlotChecks {
 public:
  /// The arguments must outlive this object.
  SlotChecks(const DiskTier& disk, const SlotFetches& fetches, ForkLatch& latch)
      : disk_(disk), fetches_(fetches), fork_latch_(latch), reader_(disk.fd()) {}

  /// Checks those of the extents that are cold. The others are in memory, or are being moved.
  void check(std::span<Extent* const> extents);
  /// Does the same in a forked child of the process that made the tier. A child that has closed the
  /// spill file checks nothing.
  void check_in_child(std::span<Extent* const> extents) const;

 private:
  void check_slot(const Extent& extent) const;

  const DiskTier& disk_;
  const SlotFetches& fetches_;
  ForkLatch& fork_latch_;
  const CachedReader reader_;
};

}  // namespace tencache
