// SPDX-License-Identifier: Apache-2.0
//
// CpuHeap's slabs: how small blocks can leave. Blocks of malloc stay resident, which costs little
// as long as they are few. Where there is a disk and they take more than a share of the budget,
// further ones are cut from slabs (memory/slabs.h), except the smallest. Blocks too large for a
// slab become extents of their own, as if the threshold were lower.
#include "memory/cpu_heap.h"

namespace tencache {
namespace {

// Up to this share of the budget, small blocks come from malloc.
constexpr uint64_t kMallocShare = 8;

}  // namespace

bool CpuHeap::is_crowded_by_small(uint64_t bytes) const {
  return disk_ != nullptr && bytes >= Slabs::kBlockBytesMin &&
         malloc_use_.used() + bytes > budget_.limit() / kMallocShare;
}

Result<Allocation> CpuHeap::allocate_movable(uint64_t bytes) {
  const bool fits_slabs = Slabs::serves(bytes);
  const std::optional<Allocation> cut = fits_slabs ? slabs_.cut(bytes) : std::nullopt;
  if (cut) return *cut;
  // Half of the extents are left to large tensors.
  if (extent_count() >= config_.extent_count_max / 2) return allocate_small(bytes);
  if (!fits_slabs) return allocate_extent(bytes);
  const Result<Allocation> made = allocate_extent(Slabs::kSlabBytes);
  if (!made.is_ok()) return allocate_small(bytes);  // room for a block may be there still
  Extent* const extent = made.value().extent;
  if (extent == nullptr) {  // addresses or mappings have run out
    free_small(made.value().address);
    return allocate_small(bytes);
  }
  return slabs_.cut_from_new(extent, bytes);
}

}  // namespace tencache
