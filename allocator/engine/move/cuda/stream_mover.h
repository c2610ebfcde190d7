// SPDX-License-Identifier: Apache-2.0
//
// StreamMover: the mover of the cuda backend. It moves extents between the GPU and host memory by
// copies on streams of its own, ordered on the device after the program's work and before it. This
// class joins its parts behind the interface. Each part knows only those above it:
//
//   HostSpill        the disk below host memory              engine/move/cuda/host_spill.h
//   HostAhead        what host memory needs ahead of use     engine/move/cuda/host_ahead.h
//   Moments          what was queued when                    engine/move/cuda/moments.h
//   Flights          extents on their way to the GPU         engine/move/cuda/flights.h
//   LinkCopies       copies, and who makes them              engine/move/cuda/link_copies.h
//   HostBlocks       room in host memory, reads from disk    engine/move/cuda/host_blocks.h
//   DirectReads      from disk straight to the GPU           engine/move/cuda/direct_reads.h
//   StreamEvictions  claim, copy, proof, leave               engine/move/cuda/stream_evictions.h
//   StreamFetches    claim, room, frames, copies             engine/move/cuda/stream_fetches.h
//
// StreamMover owns the parts and the streams, and nothing of a move.
//
// Threads: any. Moments and Flights have a lock each, a leaf that is never held across a call of
// the driver. HostSpill has two locks of its own, and HostAhead has one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/stats.h"
#include "base/status.h"
#include "engine/move/cuda/flights.h"
#include "engine/move/cuda/host_ahead.h"
#include "engine/move/cuda/host_blocks.h"
#include "engine/move/cuda/host_spill.h"
#include "engine/move/cuda/link_copies.h"
#include "engine/move/cuda/stream_evictions.h"
#include "engine/move/cuda/stream_fetches.h"
#include "engine/move/cuda/stream_parts.h"
#include "engine/move/mover.h"
#include "memory/cuda/cuda_heap.h"
#include "platform/cuda/copy_kernel.h"
#include "platform/cuda/device_hasher.h"
#include "platform/cuda/direct_storage.h"
#include "tier/disk_tier.h"
#include "tier/host_tier.h"

namespace tencache {

/// What lies below a GPU.
struct TiersBelow {
  HostTier& host;
  StagingRings staging = {};
  DiskTier* disk = nullptr;         // null: nothing goes further down
  DirectStorage* direct = nullptr;  // reads the disk's file; null: host memory is on the way
};

/// What runs on the GPU for us. Each may be null.
struct DeviceKernels {
  DeviceHasher* hasher = nullptr;
  const CopyKernel* copy = nullptr;
};

class StreamMover final : public Mover {
 public:
  /// All arguments but the streams outlive the mover, which owns the streams.
  StreamMover(CudaHeap& heap, CopyStreams streams, const TiersBelow& below,
              const DeviceKernels& kernels, Stats& stats);
  /// Waits for the copies under way. REQUIRES: no thread uses the mover any more.
  ~StreamMover() override;

  /// From now on a thread keeps this much of the host's budget free, and reads and writes ahead
  /// (HostAhead), where there is a disk and this is not 0. Call once at most.
  void keep_host_free(uint64_t headroom_bytes);

  /// Measures the link, for the first plan and for the choice between copy engines and kernel.
  /// Copies at most this many bytes to the host and back by each way, as far as the budgets have
  /// room for them. Waits for the copies; the driver has the GPU's memory again afterwards.
  /// REQUIRES: nothing is migrated yet, and nothing is cached that is to stay.
  Status measure_link(uint64_t bytes);

  EvictionResult evict(std::span<Extent* const> extents) override;
  void evict_requested(EvictionSource& source) override { evictions_.evict(source); }
  std::shared_ptr<const QueuedWork> queued_work(std::span<const MoveRequest> requests) override {
    return evictions_.mark_users(requests);
  }
  uint64_t bytes_at_once() const override { return link_.bytes_at_once(); }
  bool are_ops_queued() const override { return true; }
  void wait_while_ahead(StreamSet streams, const std::function<bool()>& is_worth_it) override;
  void fetch(std::span<Extent* const> extents, StreamSet streams, OpWait* wait) override {
    fetches_.fetch(extents, streams, wait);
  }
  uint64_t prefetch(RequestSource& requests) override { return fetches_.prefetch(requests); }
  void set_next_uses(const NextUses* next_uses) override;
  void describe_below(Machine* machine) const override;
  void settle(bool may_wait) override { flights_.settle(may_wait); }

 private:
  HostTier& host_;
  const std::unique_ptr<HostSpill> spill_;  // null where there is no disk
  const std::unique_ptr<HostAhead> ahead_;  // null where spill_ is
  const CopyStreams streams_;
  const StreamParts parts_;
  Flights flights_;
  LinkCopies link_;
  HostBlocks blocks_;
  StreamEvictions evictions_;
  StreamFetches fetches_;
};

}  // namespace tencache
