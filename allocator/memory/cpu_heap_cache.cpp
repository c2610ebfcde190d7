// SPDX-License-Identifier: Apache-2.0
//
// CpuHeap's cache: freed extents that keep their pages and wait for reuse.
#include <algorithm>
#include <utility>

#include "base/units.h"
#include "memory/cpu_heap.h"

namespace tencache {

Extent* CpuHeap::pop_cached(uint64_t bytes) {
  Extent* extent = nullptr;
  Slot stale_slot;
  {
    MutexLock lock(mutex_);
    auto found = cached_by_size_.find(bytes);
    if (found == cached_by_size_.end() || found->second.is_empty()) return nullptr;
    extent = found->second.front();
    unlink_cached(extent);
    extent->is_rest = false;  // its size is in use now
    if (!extent->has(kFlagBusy)) stale_slot = take_slot_of(extent);
  }
  if (stale_slot.is_valid()) disk_->release(stale_slot);
  return extent;
}

void CpuHeap::cache(Extent* extent) {
  Slot stale_slot;
  uint64_t count = 0;
  {
    MutexLock lock(mutex_);
    count = retire_count_.load(std::memory_order_relaxed) + 1;
    retire_count_.store(count, std::memory_order_relaxed);
    extent->retired_at = count;
    link_cached(extent);
    // The slot of a busy extent belongs to its writer. It is given back when the extent is reused
    // or trimmed, or when the disk runs short.
    if (!extent->has(kFlagBusy)) stale_slot = take_slot_of(extent);
  }
  if (stale_slot.is_valid()) disk_->release(stale_slot);
  if (count % LivePeak::kFreesPerLook == 0) bound_cache(0);
}

// Links the extent by age; one that was just freed goes to the front.
void CpuHeap::link_cached(Extent* extent) {
  Extent* newer = nullptr;
  const Extent* newest = cached_by_age_.front();
  if (newest != nullptr && newest->retired_at > extent->retired_at) {
    newer = cached_by_age_.back();
    while (newer->retired_at < extent->retired_at) newer = AgeList::previous(newer);
  }
  cached_by_age_.insert_after(newer, extent);
  cached_by_size_[extent->bytes].push_front(extent);
  cached_bytes_.fetch_add(extent->bytes, std::memory_order_relaxed);
  if (is_in_runs(*extent)) cached_runs_.add(extent->address, extent->held_bytes());
}

void CpuHeap::unlink_cached(Extent* extent) {
  cached_by_age_.remove(extent);
  auto found = cached_by_size_.find(extent->bytes);
  found->second.remove(extent);
  if (found->second.is_empty()) cached_by_size_.erase(found);
  cached_bytes_.fetch_sub(extent->bytes, std::memory_order_relaxed);
  if (is_in_runs(*extent)) cached_runs_.take(extent->address, extent->held_bytes());
}

// Takes the extent out of the lists; its padding is a part of it then. Fails while an op pins it or
// an eviction still reads its bytes.
bool CpuHeap::claim_cached(Extent* extent) {
  if (!extent->claim_for_trim()) return false;
  unlink_cached(extent);
  extent->bytes += take_padding(extent);
  return true;
}

uint64_t CpuHeap::drop_cached(uint64_t bytes) {
  uint64_t dropped_bytes = drop_cached_extents(bytes);
  if (dropped_bytes < bytes) dropped_bytes += malloc_use_.trim();
  return dropped_bytes;
}

void CpuHeap::bound_cache(uint64_t fresh_bytes) {
  look_at_time(retire_count_.load(std::memory_order_relaxed));
  live_peak_.note(live_bytes() + fresh_bytes);
  const uint64_t used = budget_.used() + fresh_bytes;
  const uint64_t allowed = allowed_bytes();
  if (used > allowed) drop_cached_extents(std::min(used - allowed, cached_bytes()));
}

// Drops cached extents, oldest first. One that has more than is left to drop, rounded up to
// granules, gives only its front. Padding goes last.
uint64_t CpuHeap::drop_cached_extents(uint64_t bytes) {
  std::vector<std::pair<Extent*, uint64_t>> dropped;  // how many bytes of each
  uint64_t dropped_bytes = 0;
  {
    MutexLock lock(mutex_);
    Extent* extent = cached_by_age_.back();
    while (extent != nullptr && dropped_bytes < bytes) {
      Extent* newer = AgeList::previous(extent);
      if (claim_cached(extent)) {
        const uint64_t left = std::min(bytes - dropped_bytes, extent->bytes);
        dropped.emplace_back(extent, std::min(round_up(left, kGranuleBytes), extent->bytes));
        dropped_bytes += dropped.back().second;
      }
      extent = newer;
    }
  }
  for (const auto& [extent, extent_bytes] : dropped) {
    if (extent_bytes == extent->bytes) {
      give_back(extent);
    } else {
      drop_front(extent, extent_bytes);
    }
    budget_.release(extent_bytes);
  }
  return dropped_bytes < bytes ? dropped_bytes + drop_paddings(bytes - dropped_bytes)
                               : dropped_bytes;
}

uint64_t CpuHeap::drop_spare_slots(uint64_t bytes) {
  std::vector<Slot> slots;
  uint64_t dropped_bytes = 0;
  {
    MutexLock lock(mutex_);
    // Cached extents that have a slot were freed while they were being written.
    for (Extent* extent = cached_by_age_.back(); extent != nullptr && dropped_bytes < bytes;
         extent = AgeList::previous(extent)) {
      if (extent->has(kFlagBusy) || !extent->slot.is_valid()) continue;
      slots.push_back(take_slot_of(extent));
      if (disk_->is_writable(slots.back())) dropped_bytes += slots.back().bytes;
    }
  }
  for (const Slot& slot : slots) disk_->release(slot);
  for (const ListedExtent& listed : extents()) {
    if (dropped_bytes >= bytes) break;
    Extent* extent = listed.extent;
    if (!extent->try_take_busy()) continue;
    if (disk_->is_writable(extent->slot)) {
      dropped_bytes += extent->slot.bytes;
      release_slot_of(extent);
    }
    extent->release_busy();
  }
  return dropped_bytes;
}

}  // namespace tencache
