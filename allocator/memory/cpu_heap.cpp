// SPDX-License-Identifier: Apache-2.0
#include "memory/cpu_heap.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/units.h"

namespace tencache {
namespace {

// PyTorch's kernels expect this alignment of CPU memory (c10::gAlignment).
constexpr size_t kSmallAlignment = 64;

uint64_t this_thread() { return static_cast<uint64_t>(pthread_self()); }

}  // namespace

CpuHeap::CpuHeap(const HeapConfig& config, AddressArena& arena, ExtentTable& table,
                 const PageMap* page_map, DiskTier* disk, Budget& budget, Stats& stats)
    : Heap(config, kSlackShare, table, budget, stats),
      arena_(arena),
      page_map_(page_map),
      disk_(disk),
      malloc_use_(budget),
      pool_(arena.base(), arena.bytes()),
      cached_runs_(arena.base(), arena.bytes()) {}

Result<Allocation> CpuHeap::allocate(uint64_t bytes) {
  TENCACHE_DCHECK(bytes > 0);
  if (is_passive()) return allocate_small(bytes);
  if (is_in_debt()) [[unlikely]] {
    TENCACHE_RETURN_IF_ERROR(pay_debt(bytes));
  }
  if (bytes < config_.extent_min_bytes) {
    return is_crowded_by_small(bytes) ? allocate_movable(bytes) : allocate_small(bytes);
  }
  return allocate_extent(bytes);
}

Result<Allocation> CpuHeap::allocate_extent(uint64_t bytes) {
  const uint64_t rounded = round_up(bytes, kPageBytes);
  if (Extent* extent = pop_cached(rounded)) return hand_out(extent, bytes);
  return allocate_extent_slow(bytes, rounded);
}

// REQUIRES: the extent is the caller's. It is Cached, but in no list any more, or Vacant, with its
// pages.
Allocation CpuHeap::hand_out(Extent* extent, uint64_t requested_bytes) {
  extent->requested_bytes.store(requested_bytes, std::memory_order_relaxed);
  extent->id.store(next_id(), std::memory_order_release);
  extent->allocated_by.store(this_thread(), std::memory_order_relaxed);
  extent->is_written_unannounced.store(false, std::memory_order_relaxed);
  if (extent->state() == ExtentState::kCached) {
    extent->revive();
  } else {
    extent->commit();
  }
  note_live();
  add(stats_.extents_allocated, 1);
  return {extent->address, extent};
}

void CpuHeap::free(void* address) {
  if (address == nullptr) return;
  if (!arena_.contains(address)) {
    free_small(address);
    return;
  }
  Extent* extent = table_.find(address);
  TENCACHE_CHECK(extent != nullptr && (extent->address == address || extent->is_slab), "free of %p",
                 address);
  if (is_passive()) {
    // In a forked child the pages are its own copies, and nobody reads its copy of the bookkeeping.
    if (!extent->is_slab) madvise(extent->address, extent->bytes, MADV_DONTNEED);
    return;
  }
  if (extent->is_slab && !slabs_.free(extent, static_cast<char*>(address))) return;
  if (extent->retire() == Retired::kCached) {
    cache(extent);
  } else {  // the cpu backend demotes nothing, so the extent is this thread's
    free_cold(extent);
  }
}

Result<Allocation> CpuHeap::allocate_small(uint64_t bytes) {
  void* address = nullptr;
  if (posix_memalign(&address, kSmallAlignment, bytes) != 0) {
    return Status(StatusCode::kOutOfMemory,
                  "tencache: the machine is out of memory. Tried to allocate " +
                      format_bytes(bytes) + "; lower the batch size or --device-memory");
  }
  if (is_passive()) return Allocation{address, nullptr};
  const uint64_t usable = malloc_usable_size(address);
  if (const uint64_t more = malloc_use_.add(usable)) {
    Status status = reserve(more, bytes);
    if (!status.is_ok()) {
      malloc_use_.remove(usable);
      ::free(address);
      return status;
    }
    malloc_use_.confirm(more);
    note_live();
  }
  if (budget_.needs_attention()) call_attention();
  return Allocation{address, nullptr};
}

void CpuHeap::free_small(void* address) {
  const uint64_t usable = malloc_usable_size(address);
  ::free(address);
  if (!is_passive()) malloc_use_.remove(usable);
}

Result<Allocation> CpuHeap::allocate_extent_slow(uint64_t requested_bytes, uint64_t bytes) {
  // A request that never fits is refused here, before anything is evicted for it in vain.
  const uint64_t bytes_max = std::min(config_.request_bytes_max, arena_.bytes());
  if (requested_bytes > bytes_max) return never_fits(requested_bytes, bytes_max);
  drop_cached_above_budget();
  const uint64_t padding_bytes = padding_for(bytes);
  Extent* extent = cut_cached(bytes + padding_bytes);
  if (extent != nullptr) {
    set_padding(extent, padding_bytes);
  } else {
    Result<Extent*> made = make_extent(bytes + padding_bytes);
    if (!made.is_ok()) {
      // Addresses or mappings ran out, not memory. Plain memory serves as well, but cannot leave.
      if (!warned_extent_count_.exchange(true)) {
        TENCACHE_LOG_WARNING("%s; further large allocations stay resident",
                             made.status().clause().c_str());
      }
      return allocate_small(requested_bytes);
    }
    extent = made.value();
    set_padding(extent, padding_bytes);
    TENCACHE_RETURN_IF_ERROR(furnish(extent, requested_bytes));
  }
  const Allocation allocation = hand_out(extent, requested_bytes);
  if (budget_.needs_attention()) call_attention();
  return allocation;
}

// Gets pages and room for a new extent. If there is no room, it ends the extent and fails.
Status CpuHeap::furnish(Extent* extent, uint64_t requested_bytes) {
  const uint64_t bytes = extent->held_bytes();
  if (!may_have_room(bytes)) {
    const RoomWait wait(*this, kNoStreams);
    await_any_room(bytes);
  }
  const Frames frames = gather_frames(extent->address, bytes);
  if (frames.bytes < bytes) {
    bound_cache(bytes - frames.bytes);
    const Status status = reserve(bytes - frames.bytes, requested_bytes);
    if (!status.is_ok()) {
      give_back(extent);
      budget_.release(frames.bytes);
      return status;
    }
  }
  set_mapping_count(extent, frames.mapping_count);
  return Status::ok();
}

// Takes addresses and an Extent object for them, which is Vacant, without room or pages.
Result<Extent*> CpuHeap::make_extent(uint64_t bytes) {
  if (extent_count() >= config_.extent_count_max) {
    return Status(StatusCode::kUnavailable,
                  std::to_string(extent_count()) +
                      " extents use up the mappings of this process (vm.max_map_count); raise it "
                      "with sysctl or raise --extent-min");
  }
  Extent* extent = nullptr;
  {
    MutexLock lock(mutex_);
    const std::optional<char*> address = pool_.take_addresses(bytes);
    if (!address) {
      return Status(StatusCode::kUnavailable,
                    "the address arena of " + format_bytes(arena_.bytes()) + " is used up");
    }
    extent = pool_.take(*address, bytes);
    extent->is_rest = false;
    extent->is_file_mapped.store(false, std::memory_order_relaxed);
  }
  Status status = arena_.commit(extent->address, bytes);
  if (!status.is_ok()) {
    MutexLock lock(mutex_);
    pool_.give_back_addresses(extent->address, bytes);
    pool_.give_back(extent);
    return status;
  }
  extent_count_.fetch_add(1, std::memory_order_relaxed);
  table_.set(extent->address, bytes, extent);
  return extent;
}

// Frees a cold extent, and counts what the program did to it unannounced. Extents go cold only
// where there is a disk, and a page map with it.
void CpuHeap::free_cold(Extent* extent) {
  TouchedPages touched;
  if (page_map_->scan(extent->address, extent->bytes, &touched).is_ok()) {
    count_unannounced(touched);
  }
  forget_unannounced(extent);
  extent->is_file_mapped.store(true, std::memory_order_relaxed);
  give_back(extent);
}

uint64_t CpuHeap::note_unannounced(Extent* extent, uint64_t bytes) {
  const uint64_t before = extent->unannounced_bytes.exchange(bytes);
  unannounced_bytes_.fetch_add(bytes - before, std::memory_order_relaxed);
  if (bytes > before) return budget_.force_reserve(bytes - before);
  if (before > bytes) budget_.release(before - bytes);
  return 0;
}

void CpuHeap::forget_unannounced(Extent* extent) {
  if (extent->unannounced_bytes.load(std::memory_order_relaxed) > 0) note_unannounced(extent, 0);
}

void CpuHeap::count_unannounced(const TouchedPages& touched) {
  if (touched.read_count > 0) add(stats_.unannounced_reads, 1);
  if (!touched.written.empty()) add(stats_.unannounced_writes, 1);
}

// Ends the life of an extent that is Vacant and the caller's. Its addresses, its slot and the
// object itself may serve others.
void CpuHeap::give_back(Extent* extent) {
  {
    MutexLock lock(mutex_);  // for those that list extents
    extent->bytes += take_padding(extent);
  }
  table_.set(extent->address, extent->bytes, nullptr);
  const bool is_unmapped = arena_.decommit(extent->address, extent->bytes);
  if (!is_unmapped && extent->is_file_mapped.load(std::memory_order_relaxed)) {
    return lose_addresses(extent);
  }
  release_slot_of(extent);
  set_mapping_count(extent, 1);
  MutexLock lock(mutex_);
  pool_.give_back_addresses(extent->address, extent->bytes);
  end_extent(extent);
}

// The extent's slot is still mapped at its addresses, and the kernel cannot unmap it, because no
// mapping is left to the process. Neither the addresses nor the slot may serve anybody else.
TENCACHE_SLOW void CpuHeap::lose_addresses(Extent* extent) {
  if (!warned_lost_addresses_.exchange(true)) {
    TENCACHE_LOG_WARNING(
        "the mappings of this process (vm.max_map_count) are used up, so memory that was freed "
        "while it was on disk keeps its room in the spill file; raise the limit with sysctl or "
        "raise --extent-min");
  }
  (void)take_slot_of(extent);
  set_mapping_count(extent, 1);
  further_mappings_.fetch_add(1, std::memory_order_relaxed);  // for good
  MutexLock lock(mutex_);
  end_extent(extent);
}

void CpuHeap::end_extent(Extent* extent) {
  extent->become_vacant();
  extent_count_.fetch_sub(1, std::memory_order_relaxed);
  pool_.give_back(extent);
}

// REQUIRES: the slot is the caller's (memory/extent.h, invariant 3). An extent without a slot must
// never be presumed clean: the bytes of its next owner may happen to match the slot_hash that
// stays.
Slot CpuHeap::take_slot_of(Extent* extent) {
  extent->has_copy_below.store(false, std::memory_order_relaxed);
  return std::exchange(extent->slot, Slot{});
}

void CpuHeap::release_slot_of(Extent* extent) {
  const Slot slot = take_slot_of(extent);
  if (slot.is_valid()) disk_->release(slot);
}

std::vector<ListedExtent> CpuHeap::extents() const {
  MutexLock lock(mutex_);
  return pool_.list();
}

}  // namespace tencache
