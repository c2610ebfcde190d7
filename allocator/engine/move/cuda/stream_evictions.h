// SPDX-License-Identifier: Apache-2.0
//
// StreamEvictions: evicts extents from a GPU to host memory. An eviction of an extent E
//   1. claims E (it stays usable; a pin taken from now on wins),
//   2. takes a block of host memory and queues two things behind the streams that have used E, for
//      whose marks the device waits: E is hashed, on a stream of its own, so that the hashes of one
//      part are made while the part before it is copied; then its bytes are copied, on the stream
//      of that direction. The streams are marked now, unless a moment from before covers all uses
//      of E (engine/move/cuda/moments.h). E is neither hashed nor copied when the block or slot
//      that it still has from the last time is presumed to hold its bytes,
//   3. waits, on the thread that evicts, until that is done, and for the work that streams named by
//      record_stream were given meanwhile. Then it seals E (pins wait): nobody has
//      pinned it since the claim, so no work that uses it was queued after the marks. E is hashed
//      again and compared, which finds what was written meanwhile without a gate, unless the write
//      was undone before the second hash,
//   4. unmaps the frame. E is cold; its room is free.
//
// Extents leave in parts. So that the link does not run dry, some parts go through 1 and 2 before
// the one ahead of them goes through 3, and the source of requests is asked for more when none is
// left. After a copy, proof and unmapping take the thread some 0.5 ms, longer than the copy of a
// small part. An extent that is requested while it is still on its way to the GPU is awaited before
// 1: the op that it comes for was queued when the request was made.
//
// A pin, a use or a differing hash at any point leaves E resident and nothing is lost. Hashing
// reads device memory alone and returns 16 bytes. Without NVRTC, which compiles the kernel, nothing
// is presumed: every eviction copies, and the gate's word is the proof.
//
// Invariants
//   1. An extent that was claimed is cold or abandoned when a call returns.
//   2. A block or a frame goes to others only when nothing queued here uses it any more.
//
// Threads: any. The calling thread holds a MigrationPermit, which it renews where a fork waits,
// once no part is under way. StreamEvictions has no lock; the moments have one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/move/cuda/flights.h"
#include "engine/move/cuda/host_blocks.h"
#include "engine/move/cuda/link_copies.h"
#include "engine/move/cuda/moments.h"
#include "engine/move/cuda/stream_parts.h"
#include "engine/move/eviction_source.h"
#include "engine/move/fork_latch.h"
#include "engine/move/move_ledger.h"
#include "engine/move/move_request.h"
#include "memory/cuda/cuda_heap.h"
#include "platform/cuda/copy_stream.h"
#include "platform/cuda/device_hasher.h"
#include "platform/cuda/stream_mark.h"

namespace tencache {

class StreamEvictions {
 public:
  /// The arguments must outlive this object.
  StreamEvictions(const StreamParts& parts, Flights& flights, HostBlocks& blocks, LinkCopies& link)
      : parts_(parts),
        flights_(flights),
        blocks_(blocks),
        link_(link),
        moments_(parts.heap.streams(), parts.streams.eviction_numbers) {}

  /// Does the work of Mover::evict_requested().
  void evict(EvictionSource& source);
  /// Does the work of Mover::queued_work().
  MomentPtr mark_users(std::span<const MoveRequest> requests) {
    return moments_.mark_users(requests);
  }

 private:
  struct Eviction {
    CudaExtent* extent = nullptr;
    uint64_t extent_id = 0;
    uint64_t claimed_at = 0;
    bool needs_copy = true;
    std::optional<PendingHash> before = std::nullopt;  // of what is copied
    std::optional<PendingHash> after = std::nullopt;   // of what is there when it is sealed
    StreamMark done = {};                              // behind users and copy, later the last hash
    MomentPtr users_done = {};                         // covers every use; null: not known
  };
  /// Evictions that are carried out together.
  struct Part {
    std::vector<Eviction> clean;  // presumed so: no copy
    std::vector<Eviction> dirty;
    bool is_empty() const { return clean.empty() && dirty.empty(); }
    uint64_t bytes() const;
    /// Whether all that was queued for the part has ended.
    bool is_copied() const;
  };
  /// One try at each of some extents.
  struct Run {
    void tell();
    MigrationPermit permit;
    EvictionSource& source;
    const bool takes_more;                // from the source
    const bool may_put_off;               // evictions that find no host memory
    std::deque<Part> under_way = {};      // oldest first
    std::vector<MoveRequest> again = {};  // those put off, and those that turned out to need a copy
    EvictionResult result = {};           // what is not told yet
    uint64_t count = 0;                   // of extents that left
  };

  void evict_taken(std::vector<MoveRequest> requests, EvictionSource& source);
  std::vector<MoveRequest> take(EvictionSource& source, uint64_t bytes_under_way);
  void evict_once(std::vector<MoveRequest> requests, Run* run);
  std::vector<MoveRequest> take_more(Run* run);
  void begin(std::span<const MoveRequest> requests, Run* run);
  void await_arrival(std::span<const MoveRequest> requests);
  static bool is_any_called_off(std::span<const MoveRequest> requests,
                                const std::deque<Part>& under_way);
  bool keeps_link_busy(const std::deque<Part>& under_way) const;
  static uint64_t bytes_of(const std::deque<Part>& parts);
  // Phase 1.
  Part claim(std::span<const MoveRequest> requests);
  // Phase 2: blocks, then hashes and copies.
  bool take_blocks_at_once(const std::vector<Eviction>& evictions);
  void take_blocks(std::vector<Eviction>& evictions, Run* run);
  Status ensure_block(CudaExtent* extent);
  void queue(Part& part, Run* run);
  void queue_hashes(std::vector<Eviction>& evictions, Run* run);
  void queue_copies(std::vector<Eviction>& evictions, Run* run);
  Status queue_hash(CopyStream& stream, const CudaExtent& extent,
                    std::optional<PendingHash>* hash) const;
  Status queue_copy(Eviction& eviction);
  void fail_from(size_t first, const Status& failure, std::vector<Eviction>& evictions, Run* run);
  // The waiting in phases 2 and 3.
  void wait_until_idle();
  void let_wait_for_users(CopyStream& stream, std::vector<Eviction>& evictions, Run* run);
  Status let_wait(CopyStream& stream, const std::vector<Eviction>& evictions);
  void await_recorded(std::vector<Eviction>& evictions, Run* run);
  Status wait_for(StreamSet users, CopyStream* stream);
  // Phases 3 and 4: proof, then frames.
  void finish_oldest(Run* run);
  void finish_all(Run* run);
  void wait_until_done(std::vector<Eviction>& evictions, Run* run);
  void prove_and_leave(std::vector<Eviction>& evictions, Run* run);
  void seal(std::vector<Eviction>& evictions);
  void hash_sealed(std::vector<Eviction>& evictions, Run* run);
  Status queue_proof(Eviction& eviction);
  bool is_proved(const Eviction& eviction) const;
  void leave(const Eviction& eviction, Run* run);
  // Extents that stay.
  void abandon(const Eviction& eviction);
  void try_again(const Eviction& eviction, Run* run);
  void fail(const Eviction& eviction, const Status& failure, Run* run);

  const StreamParts& parts_;
  Flights& flights_;
  HostBlocks& blocks_;
  LinkCopies& link_;
  Moments moments_;
};

}  // namespace tencache
