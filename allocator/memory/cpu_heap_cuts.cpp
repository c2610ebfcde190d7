// SPDX-License-Identifier: Apache-2.0
//
// CpuHeap's cuts: how freed memory serves another size where it is. To move pages elsewhere
// (memory/cpu_heap_frames.cpp) takes several system calls, and each of them holds up all threads of
// the program that touch new memory. So where memory is plentiful, an extent has whole granules.
// Behind its end lies padding: pages with room, which count as cached. Cached extents that lie side
// by side then make runs without gaps. A request takes a part of the tightest run that suffices,
// and what is left of the last extent stays cached. That is bookkeeping alone.
//
// Padding and live memory together stay within what is worth keeping (memory/live_peak.h), and
// padding goes right after the cache where room is needed. An extent that leaves, or comes back,
// has none.
//
// Runs are of no use to a program whose sizes repeat. So a freed extent is listed in them only when
// a request finds no cached extent of the size that it wants.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/units.h"
#include "memory/cpu_heap.h"

namespace tencache {
namespace {

// While at most this many eighths of the budget are in use, memory is plentiful. That is less than
// the default of arm_at, above which ops begin to be watched.
constexpr uint64_t kPlentifulEighths = 5;

// The search in a run is bounded, because it holds the heap's lock.
constexpr size_t kExtentsLookedAtMax = 64;

}  // namespace

uint64_t CpuHeap::padding_for(uint64_t bytes) const {
  const uint64_t padding_bytes = round_up(bytes, kGranuleBytes) - bytes;
  const bool is_plentiful = budget_.used() + bytes <= budget_.limit() / 8 * kPlentifulEighths;
  if (!is_plentiful || are_mappings_used_up()) return 0;
  const uint64_t live = live_bytes() + bytes;
  const bool is_worth_it = live + padding_bytes_.load() + padding_bytes <= allowed_bytes(live);
  return is_worth_it ? padding_bytes : 0;
}

// REQUIRES: the extent is Vacant and the caller's, and has no padding.
void CpuHeap::set_padding(Extent* extent, uint64_t bytes) {
  if (bytes == 0) return;
  MutexLock lock(mutex_);  // for those that list extents
  extent->bytes -= bytes;
  extent->padding_bytes = bytes;
  padding_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  cached_bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

// The padding becomes the caller's, and no longer counts as cached.
uint64_t CpuHeap::take_padding(Extent* extent) {
  const uint64_t bytes = std::exchange(extent->padding_bytes, 0);
  uncount_padding(bytes);
  return bytes;
}

void CpuHeap::uncount_padding(uint64_t bytes) {
  padding_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  cached_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
}

uint64_t CpuHeap::drop_padding(Extent* extent) {
  if (padding_bytes_.load(std::memory_order_relaxed) == 0) return 0;
  char* const end = extent->address + extent->bytes;
  uint64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    // Once the extent is freed, its padding is a part of the cache.
    if (extent->state() == ExtentState::kCached) return 0;
    bytes = std::exchange(extent->padding_bytes, 0);
  }
  if (bytes == 0) return 0;
  (void)arena_.decommit(end, bytes);  // nobody uses these addresses before the extent ends
  budget_.release(bytes);             // first, so that the bytes never count as live
  uncount_padding(bytes);
  return bytes;
}

uint64_t CpuHeap::drop_paddings(uint64_t bytes) {
  uint64_t dropped_bytes = 0;
  if (padding_bytes_.load(std::memory_order_relaxed) == 0) return 0;
  for (const ListedExtent& listed : extents()) {
    if (dropped_bytes >= bytes) break;
    if (!listed.extent->try_take_busy()) continue;
    dropped_bytes += drop_padding(listed.extent);
    listed.extent->release_busy();
  }
  return dropped_bytes;
}

void CpuHeap::list_in_runs() {
  for (Extent* extent = cached_by_age_.front(); extent != nullptr && !is_in_runs(*extent);
       extent = AgeList::next(extent)) {
    cached_runs_.add(extent->address, extent->held_bytes());
  }
  runs_until_ = retire_count_.load(std::memory_order_relaxed);
}

// The place to cut in a run. It is in what other cuts have left, so that extents of sizes in use
// stay whole, or else at the front.
char* CpuHeap::place_to_cut(std::span<const char> run, uint64_t bytes) const {
  Extent* const front = table_.find(run.data());
  const Extent* extent = front;
  for (size_t looks = 0; looks < kExtentsLookedAtMax; ++looks) {
    if (extent->is_rest && extent->held_bytes() >= bytes) return extent->address;
    const char* const next = extent->address + extent->held_bytes();
    if (next >= run.data() + run.size()) break;
    extent = table_.find(next);
  }
  return front->address;
}

// Cached extents that lie one behind another and have this many bytes, from the tightest run. They
// are Vacant, busy and the caller's then. Returns none where no run suffices, or where one of its
// extents is still in use.
std::vector<Extent*> CpuHeap::claim_run(uint64_t bytes) {
  list_in_runs();
  const std::vector<std::span<const char>> runs = cached_runs_.tightest(bytes, 1);
  if (runs.empty()) return {};
  std::vector<Extent*> claimed;
  const char* const begin = place_to_cut(runs.front(), bytes);
  for (const char* next = begin; next < begin + bytes; next += claimed.back()->bytes) {
    Extent* const extent = table_.find(next);
    if (!claim_cached(extent)) {
      for (Extent* other : claimed) {
        link_cached(other);
        other->cancel_trim();
      }
      return {};
    }
    claimed.push_back(extent);
  }
  return claimed;
}

// Makes one Vacant extent of the claimed ones, and caches what they have beyond `bytes`.
Extent* CpuHeap::join(const std::vector<Extent*>& claimed, uint64_t bytes) {
  char* const begin = claimed.front()->address;
  uint64_t mapping_count = 0;
  bool is_file_mapped = false;
  for (Extent* extent : claimed) {
    mapping_count += extent->mapping_count;
    is_file_mapped |= extent->is_file_mapped.load(std::memory_order_relaxed);
    const auto taken_bytes = static_cast<uint64_t>(begin + bytes - extent->address);
    if (extent->bytes <= taken_bytes) {
      set_mapping_count(extent, 1);
      end_extent(extent);
      continue;
    }
    cache_rest(extent, extent->address + taken_bytes, extent->bytes - taken_bytes);
  }
  Extent* const joined = pool_.take(begin, bytes);
  joined->is_rest = false;
  joined->is_file_mapped.store(is_file_mapped, std::memory_order_relaxed);
  extent_count_.fetch_add(1, std::memory_order_relaxed);
  set_mapping_count(joined, std::min(mapping_count, bytes / kGranuleBytes));
  table_.set(begin, bytes, joined);
  return joined;
}

Extent* CpuHeap::cut_cached(uint64_t bytes) {
  if (bytes % kGranuleBytes != 0 || are_mappings_used_up()) return nullptr;
  std::vector<Slot> stale_slots;
  Extent* cut = nullptr;
  {
    MutexLock lock(mutex_);
    const std::vector<Extent*> claimed = claim_run(bytes);
    if (claimed.empty()) return nullptr;
    for (Extent* extent : claimed) stale_slots.push_back(take_slot_of(extent));
    cut = join(claimed, bytes);
  }
  for (const Slot& slot : stale_slots) {
    if (slot.is_valid()) disk_->release(slot);
  }
  return cut;
}

}  // namespace tencache
