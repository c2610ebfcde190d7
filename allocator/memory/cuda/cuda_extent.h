// SPDX-License-Identifier: Apache-2.0
//
// CudaExtent: an extent of the cuda backend, with what only that knows of one: the frame under its
// address, the stream it belongs to, and its copy below: in host memory, in the base's slot, or in
// both. To the program it is a segment of one block, with a free one behind it where the request
// was not a multiple of what a GPU maps.
#pragma once

#include <atomic>

#include "memory/cuda/block_table.h"
#include "memory/extent.h"
#include "platform/cuda/device_hash.h"
#include "platform/cuda/frame_pool.h"
#include "tier/host_tier.h"

namespace tencache {

struct CudaExtent : Extent {
  /// What is mapped at the address; owned by whoever migrates or recycles the extent.
  Frame frame;
  /// The stream it was allocated on, which may have it again as soon as it is freed. Written by
  /// CudaHeap while nobody else has the extent; snapshots read it at any time.
  std::atomic<StreamSet> home{kNoStreams};
  /// The program has said that a stream uses it (record_stream), perhaps before it queues that use.
  std::atomic<bool> is_recorded{false};
  /// The copy below as far as it is in host memory, and the hash of what the copy holds, wherever
  /// it is, once there is one (has_copy_below); owned as the slot is (memory/extent.h, invariant
  /// 3).
  HostBlock host_block;
  DeviceHash copy_hash;

  /// Of its free (memory/cuda/home_marks.h). Written by who retires it.
  uint64_t free_number = 0;

  /// Of the block that the program has, or had last.
  uint64_t block_bytes() const {
    return BlockTable::block_bytes_of(requested_bytes.load(std::memory_order_relaxed), bytes);
  }
  CUdeviceptr device_address() const { return reinterpret_cast<CUdeviceptr>(address); }
};

}  // namespace tencache
