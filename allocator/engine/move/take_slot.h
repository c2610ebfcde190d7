// SPDX-License-Identifier: Apache-2.0
//
// take_slot: takes a slot of the disk tier. Where the disk is full, slots that only save a write
// later are given up, because room on the disk is worth more now.
//
// Threads: any.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tier/disk_tier.h"

namespace tencache {

/// `heap` is the one whose extents have the slots.
template <typename HeapOfSlots>
Result<Slot> take_slot(DiskTier& disk, HeapOfSlots& heap, uint64_t bytes) {
  Result<Slot> slot = disk.allocate(bytes);
  // The slots that are given up may lie scattered, so this goes on while there is anything to give
  // up.
  while (!slot.is_ok() && slot.status().code() == StatusCode::kNoSpace &&
         heap.drop_spare_slots(bytes) > 0) {
    slot = disk.allocate(bytes);
  }
  return slot;
}

}  // namespace tencache
