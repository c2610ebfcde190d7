// SPDX-License-Identifier: Apache-2.0
//
// HostBlocks: blocks of host memory, for what leaves the GPU and for what comes back from disk.
// Where host memory is short it makes room: spare copies of resident extents go first, because to
// make one again costs least, then copies of cold extents are demoted to disk
// (engine/move/cuda/host_spill.h), and at last what is on its way back leaves a copy that can be
// spared.
//
// HostBlocks owns nothing: a block belongs to the extent that it is given to, and that extent to
// the caller.
//
// Threads: any. A thread that takes a block holds a MigrationPermit. No lock is held across an I/O.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/move/cuda/flights.h"
#include "engine/move/cuda/host_spill.h"
#include "engine/move/cuda/stream_parts.h"
#include "memory/cuda/cuda_heap.h"
#include "tier/host_tier.h"

namespace tencache {

class HostBlocks {
 public:
  /// The arguments must outlive this object.
  HostBlocks(const StreamParts& parts, HostTier& host, Flights& flights)
      : parts_(parts), host_(host), flights_(flights) {}

  /// Whether blocks of cold extents can be demoted to a disk, and read back.
  bool has_disk() const { return parts_.spill != nullptr; }

  /// Takes a block as far as that is quick. Returns none where host memory has to grow or a
  /// demotion has to make room.
  HostBlock take_at_once(uint64_t bytes);
  /// Takes a block once there is room for it. Fails with kUnavailable where a later try may find
  /// room.
  Result<HostBlock> take(uint64_t bytes);
  /// Takes a block, beyond the budget if need be: an op cannot be told that there is no room.
  Result<HostBlock> take_for_op(uint64_t bytes);

  /// Gives a block to each extent that lies on disk alone, and reads its slot into it. Leaves in
  /// the batch, to be brought, those whose bytes are in host memory then. The thread waits for the
  /// disk.
  void read_back(FetchBatch* batch);

 private:
  HostSpill::Outcome make_room(uint64_t bytes);
  std::vector<CudaExtent*> take_blocks(FetchBatch* batch);

  const StreamParts& parts_;
  HostTier& host_;
  Flights& flights_;
};

}  // namespace tencache
