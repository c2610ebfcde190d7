// SPDX-License-Identifier: Apache-2.0
//
// LinkCopies: copies between the GPU and blocks of host memory. Either the GPU's copy engines do
// them or a kernel on a few of its multiprocessors (platform/cuda/copy_kernel.h); a measurement at
// the beginning decides, for each direction. Blocks that could not be pinned are copied through
// a few pinned buffers (engine/move/cuda/staged_copies.h); the calling thread does half of the
// copying.
//
// LinkCopies owns the choice of the way, and tells how much the link moves at a time.
//
// Threads: any. Call measure() on one thread, before any other call.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "engine/move/cuda/staged_copies.h"
#include "engine/move/cuda/stream_parts.h"
#include "platform/cuda/copy_kernel.h"
#include "platform/cuda/copy_stream.h"
#include "tier/host_tier.h"
#include "tier/staging_ring.h"

namespace tencache {

/// The rings for blocks that are not pinned. Where a ring is null, the driver copies those blocks.
/// Each direction has its own ring: what comes back must not wait for what leaves, which waits for
/// the program's work.
struct StagingRings {
  StagingRing* out = nullptr;
  StagingRing* in = nullptr;
};

class LinkCopies {
 public:
  /// `kernel` may be null. Parts, rings and kernel outlive this object.
  LinkCopies(const StreamParts& parts, const StagingRings& staging, const CopyKernel* kernel)
      : parts_(parts), staging_(staging), kernel_(kernel) {}
  LinkCopies(const LinkCopies&) = delete;
  LinkCopies& operator=(const LinkCopies&) = delete;

  /// Copies the block out and back by each way. From then on the kernel makes the copies of a
  /// direction in which it was clearly faster. Waits for the copies.
  Status measure(CUdeviceptr address, const HostBlock& block);

  /// Queues a copy on the stream of evictions. After a refusal a part of it may be under way.
  Status queue_out(const HostBlock& block, CUdeviceptr device);
  /// Queues a copy on `stream`. `staged` is the batch's, and made when it is needed.
  Status queue_in(const HostBlock& block, CUdeviceptr device, CopyStream& stream,
                  std::optional<StagedCopies>* staged);

  /// How many bytes the link moves in this many seconds.
  uint64_t bytes_in(double link_s) const;
  /// Does the work of Mover::bytes_at_once().
  uint64_t bytes_at_once() const;

 private:
  /// How long one copy of the same bytes takes each way.
  struct Times {
    uint64_t out_ns = 0;
    uint64_t in_ns = 0;
  };

  Result<Times> time_copies(CUdeviceptr address, const HostBlock& block);

  const StreamParts& parts_;
  const StagingRings staging_;
  const CopyKernel* const kernel_;
  // Where a kernel is null, the copy engines make the copies. Both are constant once the link is
  // measured.
  const CopyKernel* kernel_out_ = nullptr;
  const CopyKernel* kernel_in_ = nullptr;
};

}  // namespace tencache
