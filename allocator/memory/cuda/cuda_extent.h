// SPDX-License-Identifier: Apache-2.0
//
// CudaExtent: an extent of the cuda backend. It adds the frame under its address, the stream it
// belongs to, and the copy below: in host memory, in the base's slot, or in both. To the program an
// extent is a segment of one block. A free block stands behind that one where the request was not a
// multiple of what a GPU maps.
#pragma once

#include <atomic>

#include "memory/cuda/block_table.h"
#include "memory/extent.h"
#include "platform/cuda/device_hash.h"
#include "platform/cuda/frame_pool.h"
#include "tier/host_tier.h"

namespace tencache {

struct CudaExtent : Extent {
  /// The frame mapped at the address. The thread that migrates or recycles the extent owns it.
  Frame frame;
  /// The stream it was allocated on, which may reuse it as soon as it is freed. CudaHeap writes
  /// this while nobody else has the extent; snapshots read it at any time.
  std::atomic<StreamSet> owner{kNoStreams};
  /// Whether the program has announced that a stream uses it (record_stream), perhaps before
  /// queueing that use.
  std::atomic<bool> is_recorded{false};
  /// The part of the copy below that is in host memory. copy_hash is the hash of the copy's bytes,
  /// wherever they are, once there is a copy (has_copy_below). Both are owned as the slot is
  /// (memory/extent.h, invariant 3).
  HostBlock host_block;
  DeviceHash copy_hash;

  /// The number of the extent's free (memory/cuda/free_marks.h). The thread that retires the extent
  /// writes it.
  uint64_t free_number = 0;

  /// Bytes of the block that the program has, or had last.
  uint64_t block_bytes() const {
    return BlockTable::block_bytes_of(requested_bytes.load(std::memory_order_relaxed), bytes);
  }
  CUdeviceptr device_address() const { return reinterpret_cast<CUdeviceptr>(address); }
};

}  // namespace tencache
