// SPDX-License-Identifier: Apache-2.0
//
// EvictionWriter: hands the bytes of extents to a disk write, piece by piece, and hashes them.
//
// Note [Bounce ring]: an extent stays usable while it is being written, so its bytes may change
// between the moment they are hashed and the moment the device reads them, and change back before
// the proof. Then the proof would pass for a slot that holds other bytes. So each piece is copied
// first, into a ring of buffers, and the copy is what is hashed and written: whatever the program
// does, the slot holds exactly the bytes of the hash. The copy overlaps the writes in flight and
// costs a fraction of them.
//
// Threads: one EvictionWriter serves one transfer on one thread. BounceRings lends rings to threads
// and keeps what comes back.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "memory/extent.h"
#include "tier/content_hash.h"
#include "tier/io_channel.h"

namespace tencache {

/// kWindowPiecesMax buffers of one piece each.
class BounceRing {
 public:
  static Result<std::unique_ptr<BounceRing>> create();
  ~BounceRing();
  BounceRing(const BounceRing&) = delete;
  BounceRing& operator=(const BounceRing&) = delete;

  char* buffer(size_t piece) const { return memory_ + piece % kWindowPiecesMax * kPieceBytes; }

 private:
  explicit BounceRing(char* memory) : memory_(memory) {}
  char* const memory_;
};

class BounceRings {
 public:
  Result<std::unique_ptr<BounceRing>> borrow() TENCACHE_EXCLUDES(mutex_);
  void give_back(std::unique_ptr<BounceRing> ring) TENCACHE_EXCLUDES(mutex_);

 private:
  Mutex mutex_;  // a leaf lock
  std::vector<std::unique_ptr<BounceRing>> idle_ TENCACHE_GUARDED_BY(mutex_);
};

class EvictionWriter final : public PieceObserver {
 public:
  /// Every extent has a slot of its size. `ring` outlives the transfer.
  EvictionWriter(std::span<const Extent* const> extents, const BounceRing& ring);

  /// What to write: one segment for each piece.
  std::span<const IoSegment> segments() const { return segments_; }
  /// Of the bytes that were written for an extent.
  ContentHash hash(size_t extent) const { return hashers_[extent].finish(); }

  bool before_submit(size_t segment, uint64_t offset, size_t bytes) override;
  void after_complete(size_t segment, uint64_t offset, size_t bytes) override;

 private:
  struct Source {
    size_t extent;
    const char* memory;
  };

  std::vector<IoSegment> segments_;
  std::vector<Source> sources_;  // of each segment
  std::vector<ContentHasher> hashers_;
  size_t completed_count_ = 0;
};

}  // namespace tencache
