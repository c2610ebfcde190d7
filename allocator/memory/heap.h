// SPDX-License-Identifier: Apache-2.0
//
// Heap: the front door, allocate() and free(). Requests below the extent threshold go to malloc and
// are always resident; above it each is an extent. A freed extent keeps its pages and waits in a
// cache for a request of the same size, where room is short of another one (memory/heap_cache.cpp);
// the cache, and what malloc keeps likewise, is part of the device tier's use and the first thing
// that goes when room is needed.
//
// Invariants
//   1. Bytes of every extent that is Resident, Evicting, Sealing, Fetching, Merging or Cached, and
//      of every small block, are reserved in the budget; and for a moment of a Vacant one, whose
//      pages are on their way elsewhere (take_frames).
//   2. The table names every extent that is not Vacant.
//   3. A slot belongs to at most one extent.
//
// Threads: any. mutex_ is held for list and range bookkeeping only; never across a system call that
// changes memory, I/O, or a wait for room.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/address_arena.h"
#include "backend/page_map.h"
#include "base/mutex.h"
#include "base/stats.h"
#include "base/status.h"
#include "memory/budget.h"
#include "memory/extent.h"
#include "memory/extent_table.h"
#include "memory/small_blocks.h"
#include "tier/disk_tier.h"
#include "tier/range_allocator.h"

namespace tencache {

struct HeapConfig {
  uint64_t extent_min_bytes = 1 << 20;
  uint64_t extent_count_max = 16'000;         // each may cost three of vm.max_map_count mappings
  uint64_t request_bytes_max = ~uint64_t{0};  // the machine's memory and swap; nothing above works
  bool strict = false;
};

/// What the heap asks of the layer above it.
class RoomMaker {
 public:
  virtual ~RoomMaker() = default;
  /// Waits until `bytes` could be reserved in the budget, and reserves them. False when nothing
  /// that may be evicted is left; `reason` then says whether the disk is to blame (else it is ok).
  virtual bool make_room(uint64_t bytes, Status* reason) = 0;
  /// The budget's attention mark was passed. Called often; must be cheap when nothing is to do.
  virtual void on_attention() = 0;
  /// The op this thread is in, for messages; "" when none is known.
  virtual std::string current_op() const = 0;
  /// The calling thread has waited for room.
  virtual void on_wait(uint64_t ns) = 0;
};

struct Allocation {
  void* address = nullptr;
  Extent* extent = nullptr;  // null for a small block
};

/// An extent as it was when it was listed. Its address and bytes are copied under the heap's lock,
/// because the extent may be recycled at any moment; what it is now tells its state word.
struct ListedExtent {
  Extent* extent = nullptr;
  const char* address = nullptr;
  uint64_t bytes = 0;
};

class Heap {
 public:
  Heap(const HeapConfig& config, AddressArena& arena, ExtentTable& table, const PageMap* page_map,
       DiskTier* disk, Budget& budget, Stats& stats);

  /// Set once, before the first allocation.
  void set_room_maker(RoomMaker* room_maker) { room_maker_ = room_maker; }

  Result<Allocation> allocate(uint64_t bytes);
  void free(void* address);

  Extent* find(const void* address) const { return table_.find(address); }

  /// Every extent object there is, Vacant ones included.
  std::vector<ListedExtent> extents() const TENCACHE_EXCLUDES(mutex_);
  uint64_t extent_count() const { return extent_count_.load(std::memory_order_relaxed); }
  uint64_t cached_bytes() const { return cached_bytes_.load(std::memory_order_relaxed); }

  /// Gives cached extents back to the machine, oldest first, then what malloc keeps of small
  /// blocks, until `bytes` are released or none is left; returns what was released.
  uint64_t drop_cached(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// Where room is short: a cached extent whose pages, `bytes` of them from its address on, are the
  /// caller's to fill and to move elsewhere, with the room that they are counted with; null when
  /// none fits. give_up_frames() ends it, wherever the pages are then.
  Extent* take_frames(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  void give_up_frames(Extent* extent) TENCACHE_EXCLUDES(mutex_);

  /// Gives back slots of cached extents and of resident ones (copies that only save a write) until
  /// `bytes` are given back or none is left; returns what was. Slots that a fork has frozen count,
  /// though they are not free at once.
  uint64_t drop_spare_slots(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// Reserves room for bytes on the device tier: the ladder. kOutOfMemory as its last rung.
  /// The wait counts as a stall.
  Status reserve(uint64_t bytes, uint64_t requested_bytes);
  /// The same for what cannot be refused (a fetch): goes over the budget instead, and counts it.
  /// The wait is part of the fetch's, which its caller counts.
  void reserve_or_exceed(uint64_t bytes);

  /// In a forked child: malloc only from now on, nothing of the parent's is given back.
  void become_passive() { is_passive_.store(true, std::memory_order_relaxed); }

  /// Counts what the program did to a cold extent unannounced; `touched` comes from the page map.
  void count_unannounced(const TouchedPages& touched);

  /// Checks lists, table and addresses by walking everything; for tests and debug builds. REQUIRES:
  /// no other thread allocates or frees.
  bool is_valid() const TENCACHE_EXCLUDES(mutex_);

  /// Tells the layer above that use is past the attention mark.
  void call_attention() { room_maker_->on_attention(); }

  AddressArena& arena() { return arena_; }
  Budget& budget() { return budget_; }
  const SmallBlocks& small_blocks() const { return small_blocks_; }

 private:
  using AgeList = IntrusiveList<Extent, &Extent::age_hook>;
  using SizeList = IntrusiveList<Extent, &Extent::size_hook>;

  Result<Allocation> allocate_small(uint64_t bytes);
  void free_small(void* address);
  Extent* pop_cached(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  Result<Allocation> allocate_extent_slow(uint64_t requested_bytes, uint64_t bytes);
  Result<Extent*> make_extent(uint64_t requested_bytes, uint64_t bytes);
  void count_over_budget(uint64_t bytes, uint64_t excess_bytes);
  Status climb(uint64_t bytes, uint64_t requested_bytes);
  bool count_all_as_seen();
  Status out_of_memory(uint64_t requested_bytes, const Status& reason) const;
  Status never_fits(uint64_t requested_bytes, uint64_t bytes_max) const;
  void free_cold(Extent* extent);
  void cache(Extent* extent) TENCACHE_EXCLUDES(mutex_);
  void unlink_cached(Extent* extent) TENCACHE_REQUIRES(mutex_);
  Extent* claim_cached(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  bool shrink(Extent* extent, uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  Extent* recut_cached(uint64_t requested_bytes, uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  void give_back(Extent* extent) TENCACHE_EXCLUDES(mutex_);
  void drop_old_cached() TENCACHE_EXCLUDES(mutex_);
  static Slot take_slot_of(Extent* extent);
  void release_slot_of(Extent* extent);

  // Constant after construction.
  const HeapConfig config_;
  AddressArena& arena_;
  ExtentTable& table_;
  const PageMap* const page_map_;
  DiskTier* const disk_;
  Budget& budget_;
  Stats& stats_;
  SmallBlocks small_blocks_;
  RoomMaker* room_maker_ = nullptr;

  // Written by whoever allocates or frees, read for limits and statistics: exactness over several
  // threads is not needed.
  std::atomic<uint64_t> extent_count_{0};
  std::atomic<uint64_t> cached_bytes_{0};
  std::atomic<uint64_t> next_id_{1};
  std::atomic<bool> is_passive_{false};
  std::atomic<bool> all_are_seen_{false};
  std::atomic<bool> warned_over_budget_{false};
  std::atomic<bool> warned_extent_count_{false};

  mutable Mutex mutex_;
  std::deque<Extent> pool_ TENCACHE_GUARDED_BY(mutex_);  // grows only; addresses stay valid
  std::vector<Extent*> vacant_ TENCACHE_GUARDED_BY(mutex_);
  RangeAllocator granules_ TENCACHE_GUARDED_BY(mutex_);
  AgeList cached_by_age_ TENCACHE_GUARDED_BY(mutex_);  // newest first
  std::map<uint64_t, SizeList> cached_by_size_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t retire_count_ TENCACHE_GUARDED_BY(mutex_) = 0;
};

}  // namespace tencache
