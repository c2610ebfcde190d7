// SPDX-License-Identifier: Apache-2.0
#include "support/heap_books.h"

#include <algorithm>
#include <vector>

namespace tencache {

template <typename ExtentType>
bool HeapBooks::are_valid(const ExtentPool<ExtentType>& pool, uint64_t other_bytes) {
  uint64_t granule_count = other_bytes / kGranuleBytes;
  uint64_t vacant_count = 0;
  for (const ExtentType& extent : pool.all()) {
    if (extent.state() == ExtentState::kVacant) {
      ++vacant_count;
    } else {
      granule_count += ExtentPool<ExtentType>::granules_of(extent.bytes);
    }
  }
  return pool.granules_.is_valid() && pool.granules_.used() == granule_count &&
         pool.vacant_.size() == vacant_count;
}

bool HeapBooks::are_valid(const CpuHeap& heap) {
  MutexLock lock(heap.mutex_);
  uint64_t cached_bytes = 0;
  uint64_t padding_bytes = 0;
  uint64_t run_bytes = 0;
  for (const Extent& extent : heap.pool_.all()) {
    if (extent.state() == ExtentState::kVacant) continue;
    if (heap.table_.find(extent.address) != &extent) return false;
    if (heap.table_.find(extent.address + extent.held_bytes() - 1) != &extent) return false;
    if (extent.padding_bytes > 0 && extent.held_bytes() % kGranuleBytes != 0) return false;
    padding_bytes += extent.padding_bytes;
    const bool is_cached = extent.state() == ExtentState::kCached;
    if (extent.age_hook.linked != is_cached || extent.size_hook.linked != is_cached) return false;
  }
  for (const Extent* extent = heap.cached_by_age_.front(); extent != nullptr;
       extent = CpuHeap::AgeList::next(extent)) {
    cached_bytes += extent->bytes;
    const uint64_t held_bytes = extent->held_bytes();
    if (heap.is_in_runs(*extent)) run_bytes += held_bytes - held_bytes % kGranuleBytes;
    const Extent* next = CpuHeap::AgeList::next(extent);
    if (next != nullptr && next->retired_at >= extent->retired_at) return false;
  }
  return are_valid(heap.pool_, 0) && are_valid(heap.slabs_) &&
         padding_bytes == heap.padding_bytes_.load() &&
         cached_bytes + padding_bytes == heap.cached_bytes() && heap.cached_runs_.is_valid() &&
         run_bytes == heap.cached_runs_.bytes();
}

bool HeapBooks::are_valid(const CudaHeap& heap) {
  std::vector<const CudaExtent*> waiting;
  heap.waiting_.visit([&](const CudaExtent* extent) { waiting.push_back(extent); });
  MutexLock lock(heap.mutex_);
  uint64_t segment_bytes = 0;
  uint64_t cached_bytes = 0;
  for (const CudaExtent& extent : heap.pool_.all()) {
    const ExtentState state = extent.state();
    if (state == ExtentState::kVacant) {
      if (extent.frame.bytes > 0 || extent.host_block.is_valid()) return false;
      continue;
    }
    if (heap.table_.find(extent.address) != &extent) return false;
    if (heap.table_.find(extent.address + extent.bytes - 1) != &extent) return false;
    const bool has_frame = extent.frame.bytes == extent.bytes;
    if (has_frame != (state != ExtentState::kCold)) return false;
    const bool has_copy = extent.host_block.is_valid() || extent.slot.is_valid();
    if (state == ExtentState::kResident && !extent.has(kFlagBusy) && has_copy &&
        !extent.has_copy_below) {
      return false;
    }
    uint64_t handle_bytes = 0;
    for (const FrameHandle& handle : extent.frame.handles) handle_bytes += handle.bytes;
    if (handle_bytes != extent.frame.bytes) return false;
    const bool waits = std::ranges::find(waiting, &extent) != waiting.end();
    const bool is_linked = extent.age_hook.linked && extent.size_hook.linked;
    if ((waits || is_linked) != (state == ExtentState::kCached) || (waits && is_linked)) {
      return false;
    }
    if (state == ExtentState::kCached) cached_bytes += extent.bytes;
  }
  for (const auto& [address, frame] : heap.segments_) segment_bytes += frame.bytes;
  uint64_t run_bytes = 0;
  for (const Extent* extent = heap.cached_by_age_.front(); extent != nullptr;
       extent = CudaHeap::AgeList::next(extent)) {
    if (extent->is_in_runs) run_bytes += extent->bytes;
  }
  for (const auto& [owner, runs] : heap.cached_runs_) {
    if (!runs.is_valid() || runs.bytes() > run_bytes) return false;
    run_bytes -= runs.bytes();
  }
  if (run_bytes != 0) return false;
  return are_valid(heap.pool_, segment_bytes) && cached_bytes == heap.cached_bytes();
}

bool HeapBooks::are_valid(const Slabs& slabs) {
  MutexLock lock(slabs.mutex_);
  uint64_t listed = 0;
  for (const auto& [address, slab] : slabs.slabs_) {
    if (slab->extent->address != address || !slab->extent->is_slab) return false;
    if (slab->blocks.empty() || !slab->pages.is_valid()) return false;
    uint64_t page = 0;
    uint64_t slab_pages = 0;
    for (const auto& [first, count] : slab->blocks) {
      if (first < page) return false;
      page = first + count;
      slab_pages += count;
    }
    if (page > Slabs::kSlabBytes / kPageBytes || slab_pages != slab->pages.used()) return false;
    const uint64_t largest = slab->pages.largest_free();
    if (largest == 0) continue;
    if (!slabs.by_room_.contains({largest, address})) return false;
    ++listed;
  }
  return listed == slabs.by_room_.size();
}

uint64_t HeapBooks::slab_count(const Slabs& slabs) {
  MutexLock lock(slabs.mutex_);
  return slabs.slabs_.size();
}

}  // namespace tencache
