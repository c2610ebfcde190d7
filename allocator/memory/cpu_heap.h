// SPDX-License-Identifier: Apache-2.0
//
// CpuHeap: the front door of the cpu backend, allocate() and free(). A request below the extent
// threshold goes to malloc and stays resident; a larger one becomes an extent. Where small ones
// take a good part of the budget, further ones are cut from extents (memory/cpu_heap_slabs.cpp). An
// extent that is freed before it is cold keeps its pages and waits in a cache for a request of the
// same size. It also serves other sizes, where it is (memory/cpu_heap_cuts.cpp) or by moving its
// pages (memory/cpu_heap_frames.cpp). What malloc keeps of freed blocks counts as use of the device
// tier, too.
//
// Invariants, besides those of memory/heap.h
//   1. Some Vacant extents have room reserved, for a moment: those whose pages are moving
//      elsewhere, are being cut or are going back to the kernel, and one that waits for the rest of
//      its room.
//   2. A slot belongs to at most one extent.
//   3. Within an extent, the kernel mappings that this library made begin only at granules. There
//      are at most mapping_count of them.
//   4. Padding of live extents counts as cached. It ends at a granule, and a cold extent has none.
//   5. unannounced_bytes() is the sum of Extent::unannounced_bytes over all extents, and stands in
//      the budget.
//
// Threads: any. mutex_ is held only for list and range bookkeeping, never across a system call that
// changes memory, I/O, or a wait for room.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "memory/cached_runs.h"
#include "memory/extent_pool.h"
#include "memory/heap.h"
#include "memory/malloc_use.h"
#include "memory/recycling_map.h"
#include "memory/slabs.h"
#include "platform/address_arena.h"
#include "platform/page_map.h"
#include "tier/disk_tier.h"

namespace tencache {

/// What gather_frames() found for a range.
struct Frames {
  uint64_t bytes = 0;          // came with pages and room; the rest of the range got neither
  uint32_t mapping_count = 1;  // an upper bound of the mappings that make up the range
};

class CpuHeap final : public Heap {
 public:
  /// One part in so many of the peak is kept beyond it (LivePeak). What a step gives back and wants
  /// again the kernel must clear anew. With a 16th, a CNN's training touched 1,200 new pages a
  /// step, with an eighth 220, with a quarter none.
  static constexpr uint64_t kSlackShare = 4;

  CpuHeap(const HeapConfig& config, AddressArena& arena, ExtentTable& table,
          const PageMap* page_map, DiskTier* disk, Budget& budget, Stats& stats);

  Result<Allocation> allocate(uint64_t bytes);
  void free(void* address);

  std::vector<ListedExtent> extents() const override TENCACHE_EXCLUDES(mutex_);
  uint64_t small_bytes() const override { return malloc_use_.used(); }
  uint64_t unannounced_bytes() const override {
    return unannounced_bytes_.load(std::memory_order_relaxed);
  }
  /// Drops cached extents first, then the padding of live ones, then what malloc keeps of freed
  /// blocks.
  uint64_t drop_cached(uint64_t bytes) override TENCACHE_EXCLUDES(mutex_);
  uint64_t empty_cache() override { return drop_cached(~uint64_t{0}); }
  /// Gives back the pages behind the end of an extent; returns their bytes. REQUIRES: the caller
  /// has it busy.
  uint64_t drop_padding(Extent* extent) TENCACHE_EXCLUDES(mutex_);

  /// Moves pages of cached extents, with their room, under [target, target + bytes). Bytes that got
  /// none keep what stood behind them. REQUIRES: the range is anonymous memory that begins at a
  /// granule, and nobody else uses it.
  Frames gather_frames(char* target, uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  /// Drops what is cached beyond what is worth keeping (memory/live_peak.h). Call before this many
  /// fresh bytes are reserved.
  void bound_cache(uint64_t fresh_bytes) TENCACHE_EXCLUDES(mutex_);
  bool can_use_any_cached() const override { return arena_.can_keep_source(); }

  /// Makes a place for the pages of an extent that leaves: Vacant, with addresses but without room.
  /// Returns null where there is none.
  Extent* make_parking(uint64_t bytes);
  /// Caches the pages and room that the parking extent was given.
  void cache_parked(Extent* parking) TENCACHE_EXCLUDES(mutex_);
  void drop_parking(Extent* parking) { give_back(parking); }

  /// Notes how many mappings an extent lies in now. REQUIRES: the caller migrates or recycles it.
  void set_mapping_count(Extent* extent, uint64_t count);

  /// Gives back slots of cached extents and of resident ones (copies that only save a write) until
  /// `bytes` went or none is left. Returns the bytes that went. A slot that a fork has frozen is
  /// not free before its child ends. So it does not count, and that of a resident extent stays: the
  /// extent, if clean, can still leave to it.
  uint64_t drop_spare_slots(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// Counts what the program did to a cold extent unannounced; `touched` comes from the page map.
  void count_unannounced(const TouchedPages& touched);

  /// Books pages that the program wrote to a cold extent without an op: this many bytes now. They
  /// are private pages on top of the slot (Note [Cold mapping] in platform/address_arena.h), so
  /// they count in the budget. Where they are more than before, returns by how many bytes the
  /// budget is exceeded then, to be counted when nobody waits for the extent. Otherwise returns 0.
  /// REQUIRES: the caller has claimed the extent.
  uint64_t note_unannounced(Extent* extent, uint64_t bytes);
  /// Call when the extent is about to become resident. REQUIRES: the caller has claimed it.
  void forget_unannounced(Extent* extent);

  AddressArena& arena() { return arena_; }

 private:
  friend struct HeapBooks;  // of the suites: walks over all of it
  using AgeList = IntrusiveList<Extent, &Extent::age_hook>;
  using SizeList = IntrusiveList<Extent, &Extent::size_hook>;

  bool is_cold_usable() const override { return true; }
  Result<Allocation> allocate_extent(uint64_t bytes);
  bool is_crowded_by_small(uint64_t bytes) const;
  Result<Allocation> allocate_movable(uint64_t bytes);
  Result<Allocation> allocate_small(uint64_t bytes);
  void free_small(void* address);
  Extent* pop_cached(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  Result<Allocation> allocate_extent_slow(uint64_t requested_bytes, uint64_t bytes);
  Allocation hand_out(Extent* extent, uint64_t requested_bytes);
  Result<Extent*> make_extent(uint64_t bytes);
  Status furnish(Extent* extent, uint64_t requested_bytes);
  void free_cold(Extent* extent);
  void cache(Extent* extent) TENCACHE_EXCLUDES(mutex_);
  void link_cached(Extent* extent) TENCACHE_REQUIRES(mutex_);
  void unlink_cached(Extent* extent) TENCACHE_REQUIRES(mutex_);
  bool claim_cached(Extent* extent) TENCACHE_REQUIRES(mutex_);
  void end_extent(Extent* extent) TENCACHE_REQUIRES(mutex_);

  uint64_t padding_for(uint64_t bytes) const;
  void set_padding(Extent* extent, uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  uint64_t take_padding(Extent* extent);
  void uncount_padding(uint64_t bytes);
  uint64_t drop_paddings(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  bool is_in_runs(const Extent& cached) const TENCACHE_REQUIRES(mutex_) {
    return cached.retired_at <= runs_until_;
  }
  void list_in_runs() TENCACHE_REQUIRES(mutex_);
  char* place_to_cut(std::span<const char> run, uint64_t bytes) const TENCACHE_REQUIRES(mutex_);
  std::vector<Extent*> claim_run(uint64_t bytes) TENCACHE_REQUIRES(mutex_);
  Extent* join(const std::vector<Extent*>& claimed, uint64_t bytes) TENCACHE_REQUIRES(mutex_);
  Extent* cut_cached(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  struct Donation;
  std::vector<Donation> claim_donors(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  uint32_t move_donation(Donation* donation, char* target, uint64_t target_bytes);
  void end_donation(const Donation& donation, bool may_be_kept) TENCACHE_EXCLUDES(mutex_);
  void cache_rest(Extent* extent, char* address, uint64_t bytes) TENCACHE_REQUIRES(mutex_);
  void drop_front(Extent* extent, uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  bool take_off(char* address, uint64_t bytes);
  void give_back(Extent* extent) TENCACHE_EXCLUDES(mutex_);
  void lose_addresses(Extent* extent) TENCACHE_EXCLUDES(mutex_);
  uint64_t drop_cached_extents(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  bool are_mappings_used_up() const {
    return extent_count() + further_mappings_.load() >= config_.extent_count_max;
  }
  static Slot take_slot_of(Extent* extent);
  void release_slot_of(Extent* extent);

  // Constant after construction.
  AddressArena& arena_;
  const PageMap* const page_map_;
  DiskTier* const disk_;
  MallocUse malloc_use_;
  Slabs slabs_;

  std::atomic<bool> warned_extent_count_{false};
  std::atomic<bool> warned_lost_addresses_{false};
  std::atomic<uint64_t> further_mappings_{0};   // besides one for each extent
  std::atomic<uint64_t> padding_bytes_{0};      // of all extents
  std::atomic<uint64_t> unannounced_bytes_{0};  // likewise

  mutable Mutex mutex_;
  ExtentPool<Extent> pool_ TENCACHE_GUARDED_BY(mutex_);
  AgeList cached_by_age_ TENCACHE_GUARDED_BY(mutex_);  // newest first
  RecyclingMap<uint64_t, SizeList> cached_by_size_ TENCACHE_GUARDED_BY(mutex_);
  CachedRuns cached_runs_ TENCACHE_GUARDED_BY(mutex_);   // of what was freed up to runs_until_
  uint64_t runs_until_ TENCACHE_GUARDED_BY(mutex_) = 0;  // a retired_at
  std::atomic<uint64_t> retire_count_{0};                // changed with mutex_ held
};

}  // namespace tencache
