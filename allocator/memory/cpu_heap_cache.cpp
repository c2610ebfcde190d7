// SPDX-License-Identifier: Apache-2.0
//
// CpuHeap's cache: freed extents, their pages still there, that wait for reuse.
//
// Note [Frames of another size]: a page that is given back to the kernel and asked for again has to
// be cleared, which costs more than anything else in a move, and as long as the program computes on
// all processors it pays for that. So where room is short an extent of another size is taken rather
// than dropped: an allocation gets the front part of a larger one, address and all; a fetch reads
// its slot into a larger one's pages, which then move under the address that is wanted. What is too
// much goes back to the kernel at once, so the budget stays exact.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "memory/cpu_heap.h"

namespace tencache {
namespace {

// A cached extent that this many later frees did not bring back into use belongs to a shape that
// the program has left behind.
constexpr uint64_t kCacheAgeMax = 4096;
constexpr int kOldDropsPerMiss = 8;
// A larger one is taken only while at least half of it is of use.
constexpr uint64_t kTooLargeFactor = 2;

}  // namespace

Extent* CpuHeap::pop_cached(uint64_t bytes) {
  Extent* extent = nullptr;
  Slot stale_slot;
  {
    MutexLock lock(mutex_);
    auto found = cached_by_size_.find(bytes);
    if (found == cached_by_size_.end() || found->second.is_empty()) return nullptr;
    extent = found->second.front();
    unlink_cached(extent);
    if (!extent->has(kFlagBusy)) stale_slot = take_slot_of(extent);
  }
  if (stale_slot.is_valid()) disk_->release(stale_slot);
  return extent;
}

void CpuHeap::cache(Extent* extent) {
  Slot stale_slot;
  {
    MutexLock lock(mutex_);
    extent->retired_at = ++retire_count_;
    cached_by_age_.push_front(extent);
    cached_by_size_[extent->bytes].push_front(extent);
    // The slot of a busy extent belongs to its writer; it is given back when the extent is reused,
    // trimmed, or when the disk runs short.
    if (!extent->has(kFlagBusy)) stale_slot = take_slot_of(extent);
    cached_bytes_.fetch_add(extent->bytes, std::memory_order_relaxed);
  }
  if (stale_slot.is_valid()) disk_->release(stale_slot);
}

void CpuHeap::unlink_cached(Extent* extent) {
  cached_by_age_.remove(extent);
  auto found = cached_by_size_.find(extent->bytes);
  found->second.remove(extent);
  if (found->second.is_empty()) cached_by_size_.erase(found);
  cached_bytes_.fetch_sub(extent->bytes, std::memory_order_relaxed);
}

// Who waits longest of those that fit best. It is Vacant and busy then, and the caller's.
Extent* CpuHeap::claim_cached(uint64_t bytes) {
  MutexLock lock(mutex_);
  for (auto entry = cached_by_size_.lower_bound(bytes);
       entry != cached_by_size_.end() && entry->first < bytes * kTooLargeFactor; ++entry) {
    for (Extent* extent = entry->second.back(); extent != nullptr;
         extent = SizeList::previous(extent)) {
      if (!extent->claim_for_trim()) continue;  // an op still pins it or a writer still reads it
      unlink_cached(extent);
      return extent;
    }
  }
  return nullptr;
}

// REQUIRES: the extent is Vacant, busy and the caller's. False, and it is gone, when the kernel
// refuses to cut it (vm.max_map_count).
bool CpuHeap::shrink(Extent* extent, uint64_t bytes) {
  const uint64_t old_bytes = extent->bytes;
  if (old_bytes == bytes) return true;
  if (!arena_.cut_off(extent->address + bytes, old_bytes - bytes).is_ok()) {
    give_back(extent);
    budget_.release(old_bytes);
    return false;
  }
  const uint64_t kept_granules = round_up(bytes, kGranuleBytes) / kGranuleBytes;
  const uint64_t freed_granules =
      round_up(old_bytes, kGranuleBytes) / kGranuleBytes - kept_granules;
  char* kept_end = extent->address + kept_granules * kGranuleBytes;
  if (freed_granules > 0) table_.set(kept_end, freed_granules * kGranuleBytes, nullptr);
  {
    MutexLock lock(mutex_);
    extent->bytes = bytes;
    if (freed_granules > 0) {
      granules_.free(static_cast<uint64_t>(kept_end - arena_.base()) / kGranuleBytes,
                     freed_granules);
    }
  }
  budget_.release(old_bytes - bytes);
  return true;
}

Extent* CpuHeap::recut_cached(uint64_t requested_bytes, uint64_t bytes) {
  if (!budget_.is_scarce(bytes)) return nullptr;
  Extent* extent = claim_cached(bytes);
  if (extent == nullptr || !shrink(extent, bytes)) return nullptr;
  release_slot_of(extent);
  extent->requested_bytes.store(requested_bytes, std::memory_order_relaxed);
  extent->id = next_id();
  extent->become_vacant();
  extent->commit();
  return extent;
}

Extent* CpuHeap::take_frames(uint64_t bytes) {
  if (!arena_.can_keep_source() || !budget_.is_scarce(bytes)) return nullptr;
  Extent* extent = claim_cached(bytes);
  return extent != nullptr && shrink(extent, bytes) ? extent : nullptr;
}

void CpuHeap::give_up_frames(Extent* extent) { give_back(extent); }

uint64_t CpuHeap::drop_cached(uint64_t bytes) {
  std::vector<Extent*> dropped;
  uint64_t dropped_bytes = 0;
  {
    MutexLock lock(mutex_);
    Extent* extent = cached_by_age_.back();
    while (extent != nullptr && dropped_bytes < bytes) {
      Extent* newer = AgeList::previous(extent);
      if (extent->claim_for_trim()) {  // not one that an op still pins or a writer still reads
        unlink_cached(extent);
        dropped.push_back(extent);
        dropped_bytes += extent->bytes;
      }
      extent = newer;
    }
  }
  for (Extent* extent : dropped) {
    const uint64_t extent_bytes = extent->bytes;
    give_back(extent);
    budget_.release(extent_bytes);
  }
  if (dropped_bytes < bytes) dropped_bytes += small_blocks_.trim();
  return dropped_bytes;
}

void CpuHeap::drop_old_cached() {
  uint64_t old_bytes = 0;
  {
    MutexLock lock(mutex_);
    int left = kOldDropsPerMiss;
    for (Extent* extent = cached_by_age_.back();
         extent != nullptr && left > 0 && retire_count_ - extent->retired_at > kCacheAgeMax;
         extent = AgeList::previous(extent), --left) {
      old_bytes += extent->bytes;
    }
  }
  if (old_bytes > 0) drop_cached(old_bytes);
}

uint64_t CpuHeap::drop_spare_slots(uint64_t bytes) {
  std::vector<Slot> slots;
  uint64_t dropped_bytes = 0;
  {
    MutexLock lock(mutex_);
    // Extents that were freed while they were being written.
    for (Extent* extent = cached_by_age_.back(); extent != nullptr && dropped_bytes < bytes;
         extent = AgeList::previous(extent)) {
      if (extent->has(kFlagBusy) || !extent->slot.is_valid()) continue;
      slots.push_back(take_slot_of(extent));
      dropped_bytes += slots.back().bytes;
    }
  }
  for (const Slot& slot : slots) disk_->release(slot);
  for (const ListedExtent& listed : extents()) {
    if (dropped_bytes >= bytes) break;
    Extent* extent = listed.extent;
    if (!extent->try_take_busy()) continue;
    dropped_bytes += extent->slot.bytes;
    release_slot_of(extent);
    extent->release_busy();
  }
  return dropped_bytes;
}

}  // namespace tencache
