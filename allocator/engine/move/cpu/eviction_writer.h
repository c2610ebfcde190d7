// SPDX-License-Identifier: Apache-2.0
//
// EvictionWriter: hands the bytes of extents to a disk write, piece by piece, and hashes them.
//
// Note [Bounce ring]: an extent stays usable while it is being written. So its bytes may change
// between the moment they are hashed and the moment the device reads them, and change back before
// the proof. Then the proof would pass for a slot that holds other bytes. Therefore each piece is
// copied into a buffer of the channel (tier/bounce_ring.h), and the copy is hashed and written:
// whatever the program does, the slot holds exactly the bytes of the hash. The copy overlaps the
// writes in flight and costs a fraction of them. Pages that can be parked are moved away first
// instead, and need none of this (engine/move/cpu/parked_evictions.h).
//
// Threads: one EvictionWriter serves one transfer on one thread.
#pragma once

#include <span>
#include <vector>

#include "engine/move/cpu/slot_eviction.h"
#include "engine/move/move_ledger.h"
#include "tier/content_hash.h"
#include "tier/disk_tier.h"
#include "tier/io_channel.h"

namespace tencache {

class EvictionWriter final : public PieceObserver {
 public:
  /// Every extent has a slot of its size. `evictions` outlives the writer.
  explicit EvictionWriter(std::span<const SlotEviction> evictions);

  /// One segment for each extent, without memory.
  std::span<const IoSegment> segments() const { return segments_; }
  /// The hash of the bytes that were written for an extent.
  ContentHash hash(size_t index) const { return hashers_[index].finish(); }

  bool before_submit(size_t segment, uint64_t offset, char* memory, size_t bytes) override;
  void after_complete(size_t, uint64_t, size_t) override {}

 private:
  const std::span<const SlotEviction> evictions_;
  std::vector<IoSegment> segments_;
  std::vector<ContentHasher> hashers_;
};

/// Writes for an eviction; speed and work of the write go into the ledger.
TransferResult write_measured(DiskTier& disk, std::span<const IoSegment> segments,
                              PieceObserver* observer, MoveLedger& ledger);

}  // namespace tencache
