// SPDX-License-Identifier: Apache-2.0
//
// CudaHeap's copies below: when they are given back, and which go first where a tier is short.
#include <vector>

#include "memory/cuda/cuda_heap.h"

namespace tencache {
namespace {

// How many extents are found at most while the heap's lock is held.
constexpr size_t kFoundAtOnce = 64;

}  // namespace

// Gives back the copy below, unless the extent is busy: then the copy belongs to its migration.
void CudaHeap::release_spare_copy(CudaExtent* extent) {
  if (extent->has(kFlagBusy)) return;
  if (extent->host_block.is_valid() || extent->slot.is_valid()) copies_.release(extent);
}

uint64_t CudaHeap::drop_spare_copies(uint64_t bytes) {
  return drop_spares(bytes, false, &CudaHeap::drop_spare_copy);
}

uint64_t CudaHeap::drop_spare_slots(uint64_t bytes) {
  return drop_spares(bytes, true, &CudaHeap::drop_spare_slot);
}

// Goes through the extents in the order in which their objects were made. The planner models that
// by the order of its tensors' numbers (learn/host_model.h).
uint64_t CudaHeap::drop_spares(uint64_t bytes, bool with_cold, DropSpare drop) {
  uint64_t dropped_bytes = 0;
  size_t place = 0;
  while (dropped_bytes < bytes) {
    const std::vector<CudaExtent*> some = next_with_copy(with_cold, &place);
    if (some.empty()) break;
    for (size_t index = 0; index < some.size() && dropped_bytes < bytes; ++index) {
      dropped_bytes += (this->*drop)(some[index]);
    }
  }
  return dropped_bytes;
}

// A few extents that have a copy below, from the one at this place on. Cold ones are among them
// only if `with_cold`. Returns an empty vector when there are no more.
std::vector<CudaExtent*> CudaHeap::next_with_copy(bool with_cold, size_t* place) {
  std::vector<CudaExtent*> found;
  MutexLock lock(mutex_);
  for (; *place < pool_.all().size() && found.size() < kFoundAtOnce; ++*place) {
    CudaExtent& extent = pool_.all()[*place];
    if (!extent.has_copy_below.load(std::memory_order_relaxed)) continue;
    if (with_cold || extent.state() == ExtentState::kResident) found.push_back(&extent);
  }
  return found;
}

uint64_t CudaHeap::drop_spare_copy(CudaExtent* extent) {
  if (!extent->try_take_busy()) return 0;
  const uint64_t bytes = extent->host_block.bytes;
  if (extent->slot.is_valid() && extent->is_presumed_clean()) {
    copies_.release_block(extent);
  } else {
    copies_.release(extent);
  }
  extent->release_busy();
  return bytes;
}

uint64_t CudaHeap::drop_spare_slot(CudaExtent* extent) {
  uint64_t bytes = 0;
  if (extent->try_take_busy()) {
    if (copies_.may_give_up_slot(*extent)) {
      bytes = extent->slot.bytes;
      copies_.release_slot(extent);
      if (!extent->host_block.is_valid()) copies_.release(extent);
    }
    extent->release_busy();
  } else if (extent->claim_cold()) {
    // A block beyond the budget goes when the extent returns; then the slot is the only copy.
    const bool has_block = extent->host_block.is_valid() && !extent->host_block.is_beyond_budget();
    if (has_block && copies_.may_give_up_slot(*extent)) {
      bytes = extent->slot.bytes;
      copies_.release_slot(extent);
    }
    release_cold(extent);
  }
  return bytes;
}

void CudaHeap::release_cold(CudaExtent* extent) {
  if (!extent->release_cold()) give_back_addresses(extent);
}

}  // namespace tencache
