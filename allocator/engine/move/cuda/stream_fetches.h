// SPDX-License-Identifier: Apache-2.0
//
// StreamFetches: fetches cold extents from host memory, and the disk below it, to a GPU. A fetch of
// an extent E
//   1. claims E; an extent that another thread brings is awaited at the end,
//   2. takes room in the budget. Fetches ahead of use never exceed it. An op waits for room: what
//      the op names comes one by one then, each extent as soon as it finds room, so that both
//      directions of the link are busy,
//   3. reads E back where it lies on disk alone, takes a frame and maps it on the host, because the
//      driver checks addresses when work is queued, then queues the copy and marks it. E takes off
//      (engine/move/cuda/flights.h) and is Arriving until the mark is reached,
//   4. lets the op's stream wait for the mark. No thread waits for a copy of pinned memory, unless
//      the op captures a graph or uses several streams. Any other stream that uses E waits for the
//      mark, too, and a thread that notices that it is reached settles E.
//
// An extent that lies on disk alone is read into a block before its fetch takes a frame, on the
// thread that fetches: an op that needs it waits for the disk on the host, a fetch ahead of use
// keeps nobody waiting. The slot stays with the extent as a spare copy, as the block does, until
// other bytes leave. Where the disk can be read straight into the GPU
// (engine/move/cuda/direct_reads.h), the frame comes first; what does not arrive whole comes by
// host memory.
//
// Ahead of use, only a few milliseconds of copies are in flight at a time, and one flight is always
// queued behind another.
//
// A GPU cannot read what is not mapped: should a copy fail, E stays cold, and an op that uses it
// faults on the device. It never reads wrong bytes.
//
// Invariants
//   1. An extent that was claimed has taken off or is cold when a call returns.
//   2. An extent that takes off has a frame, room in the budget, and its bytes queued.
//
// Threads: any; StreamFetches has no lock of its own. The thread holds a MigrationPermit while it
// queues and reads, and none while it waits for room on the GPU. It makes room in host memory under
// its permit.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/move/cuda/direct_reads.h"
#include "engine/move/cuda/flights.h"
#include "engine/move/cuda/host_blocks.h"
#include "engine/move/cuda/link_copies.h"
#include "engine/move/cuda/stream_parts.h"
#include "engine/move/move_ledger.h"
#include "engine/move/move_request.h"
#include "memory/cuda/cuda_heap.h"
#include "platform/cuda/copy_stream.h"
#include "platform/cuda/direct_storage.h"
#include "platform/cuda/stream_mark.h"
#include "platform/stream_set.h"

namespace tencache {

class StreamFetches {
 public:
  /// `direct` may be null. The arguments outlive this object.
  StreamFetches(const StreamParts& parts, Flights& flights, HostBlocks& blocks, LinkCopies& link,
                DirectStorage* direct)
      : parts_(parts),
        flights_(flights),
        blocks_(blocks),
        link_(link),
        direct_reads_(parts, direct) {}
  StreamFetches(const StreamFetches&) = delete;
  StreamFetches& operator=(const StreamFetches&) = delete;

  /// These two do the work of Mover::fetch and Mover::prefetch. Where the driver refuses, the
  /// extent stays cold; the first time that this happens on demand, a warning says so.
  void fetch(std::span<Extent* const> extents, StreamSet streams, OpWait* wait);
  uint64_t prefetch(RequestSource& requests);

 private:
  // Fetches on demand.
  std::vector<Extent*> fetch_once(std::span<Extent* const> extents, StreamSet streams, int* tries,
                                  OpWait* wait);
  bool is_apart(const Extent* last_late, const Extent* extent);
  static std::vector<CudaExtent*> claim(std::span<Extent* const> extents);
  bool await_bytes(CudaExtent* extent, StreamSet streams, LateFetches* late, bool* has_landed);
  std::vector<CudaExtent*> bring_as_room_comes(std::span<CudaExtent* const> claimed,
                                               StreamSet streams);
  size_t take_room(std::span<CudaExtent* const> extents, bool one_by_one, StreamSet streams);
  // Fetches ahead of use.
  static bool claim_when_demoted(Extent* extent);
  void bring_ahead(std::span<CudaExtent* const> extents);
  // Phase 3 of both kinds of fetches.
  void bring(FetchBatch* batch);
  void bring_directly(FetchBatch* batch, CopyStream& stream);
  void map_frames(std::vector<CudaExtent*>& extents, FetchBatch* batch);
  void take_away_frames(std::span<CudaExtent* const> extents);
  Status copy_in(std::span<CudaExtent* const> extents, CopyStream& stream, StreamMark* mark);

  const StreamParts& parts_;
  Flights& flights_;
  HostBlocks& blocks_;
  LinkCopies& link_;
  DirectReads direct_reads_;
  std::atomic<bool> is_gathering_{false};  // a thread has room for a part of what its op names
};

}  // namespace tencache
