// SPDX-License-Identifier: Apache-2.0
//
// CpuHeap: the front door of the cpu backend, allocate() and free(). Requests below the extent
// threshold go to malloc and are always resident; above it each is an extent. A freed extent keeps
// its pages and waits in a cache for a request of the same size, where room is short of another one
// (memory/cpu_heap_cache.cpp); what malloc keeps likewise is part of the device tier's use too.
//
// Invariants, besides those of memory/heap.h
//   1. Room is reserved, for a moment, for a Vacant extent too, whose pages are on their way
//      elsewhere (take_frames).
//   2. A slot belongs to at most one extent.
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
#include "base/status.h"
#include "memory/heap.h"
#include "memory/small_blocks.h"
#include "tier/disk_tier.h"
#include "tier/range_allocator.h"

namespace tencache {

class CpuHeap final : public Heap {
 public:
  CpuHeap(const HeapConfig& config, AddressArena& arena, ExtentTable& table,
          const PageMap* page_map, DiskTier* disk, Budget& budget, Stats& stats);

  Result<Allocation> allocate(uint64_t bytes);
  void free(void* address);

  std::vector<ListedExtent> extents() const override TENCACHE_EXCLUDES(mutex_);
  uint64_t small_bytes() const override { return small_blocks_.used(); }
  /// After the cached extents, what malloc keeps of small blocks.
  uint64_t drop_cached(uint64_t bytes) override TENCACHE_EXCLUDES(mutex_);

  /// Where room is short: a cached extent whose pages, `bytes` of them from its address on, are the
  /// caller's to fill and to move elsewhere, with the room that they are counted with; null when
  /// none fits. give_up_frames() ends it, wherever the pages are then.
  Extent* take_frames(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  void give_up_frames(Extent* extent) TENCACHE_EXCLUDES(mutex_);

  /// Gives back slots of cached extents and of resident ones (copies that only save a write) until
  /// `bytes` are given back or none is left; returns what was. Slots that a fork has frozen count,
  /// though they are not free at once.
  uint64_t drop_spare_slots(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// Counts what the program did to a cold extent unannounced; `touched` comes from the page map.
  void count_unannounced(const TouchedPages& touched);

  /// Checks lists, table and addresses by walking everything; for tests and debug builds. REQUIRES:
  /// no other thread allocates or frees.
  bool is_valid() const TENCACHE_EXCLUDES(mutex_);

  AddressArena& arena() { return arena_; }
  const SmallBlocks& small_blocks() const { return small_blocks_; }

 private:
  using AgeList = IntrusiveList<Extent, &Extent::age_hook>;
  using SizeList = IntrusiveList<Extent, &Extent::size_hook>;

  bool is_cold_usable() const override { return true; }
  Result<Allocation> allocate_small(uint64_t bytes);
  void free_small(void* address);
  Extent* pop_cached(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  Result<Allocation> allocate_extent_slow(uint64_t requested_bytes, uint64_t bytes);
  Result<Extent*> make_extent(uint64_t requested_bytes, uint64_t bytes);
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
  AddressArena& arena_;
  const PageMap* const page_map_;
  DiskTier* const disk_;
  SmallBlocks small_blocks_;

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
