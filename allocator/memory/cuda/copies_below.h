// SPDX-License-Identifier: Apache-2.0
//
// CopiesBelow: gives back the copies that extents of a GPU have below, in host memory and on disk.
//
// Threads: any. In each call the copy is the caller's (memory/extent.h, invariant 3).
#pragma once

#include <atomic>
#include <utility>

#include "memory/cuda/cuda_extent.h"
#include "tier/disk_tier.h"
#include "tier/host_tier.h"

namespace tencache {

class CopiesBelow {
 public:
  /// Both tiers outlive this object. Null stands for a tier that does not exist.
  CopiesBelow(HostTier* host, DiskTier* disk) : host_(host), disk_(disk) {}

  /// Gives back the whole copy below, or its part in host memory or on disk. REQUIRES: the copy is
  /// the caller's.
  void release(CudaExtent* extent) {
    extent->has_copy_below.store(false, std::memory_order_relaxed);
    release_block(extent);
    release_slot(extent);
  }
  void release_block(CudaExtent* extent) {
    const HostBlock block = std::exchange(extent->host_block, HostBlock{});
    if (block.is_valid()) host_->release(block);
  }
  void release_slot(CudaExtent* extent) {
    const Slot slot = std::exchange(extent->slot, Slot{});
    if (slot.is_valid()) disk_->release(slot);
  }
  /// Whether there is a slot whose room would be free at once. One that a fork has frozen would not
  /// be free before the child ends, and the extent can still leave to it.
  bool may_give_up_slot(const CudaExtent& extent) const {
    return extent.slot.is_valid() && disk_->is_writable(extent.slot);
  }

 private:
  HostTier* const host_;
  DiskTier* const disk_;
};

}  // namespace tencache
