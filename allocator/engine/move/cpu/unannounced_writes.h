// SPDX-License-Identifier: Apache-2.0
//
// UnannouncedWrites: finds what the program wrote to cold extents without an op (a C library that
// updates state through data_ptr(), an old NumPy view), and evicts those extents again where room
// is short. Each page written so is a private page on top of the slot, which takes memory
// (memory/cpu_heap.h).
//
// Note [Looking for private pages]: such writes are not announced, so a thread looks for them. To
// read the page map takes 0.5 ms for 1 GiB of cold extents that nobody touched, and up to 30 ms
// where pages are there. That is too much to do often. So the thread looks every 5 to 20 ms (each
// millisecond while the program writes) at one figure, the process's anonymous memory, which costs
// a microsecond. It looks through the cold extents when that figure grew by more than the budget
// explains, or when the last look found writes going on. Looks in vain take at most a twentieth of
// one processor. The thread starts when the first extent becomes cold.
//
// Note [Pace of unannounced writes]: a program writes to memory faster than anything reaches a
// disk. Such a write first reads its page from the slot. So as long as room is short, and such
// writes go on, pages are read singly instead of many ahead. That slows the program down to a pace
// that evictions keep up with. Besides, a share of the budget is reserved as long as such writes go
// on.
//
// Evicting again is a fetch, which merges the private pages, and an eviction. An extent of which
// the program has written every page needs no fetch. An extent that is being written right now
// would be written to disk in vain. So one that gained private pages since the look before, and has
// unwritten pages left, leaves only when nothing else can.
//
// Threads: any; mutex_ guards what the last look found.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "engine/move/cpu/slot_evictions.h"
#include "engine/move/cpu/slot_fetches.h"
#include "memory/cpu_heap.h"
#include "platform/page_map.h"
#include "platform/process_memory.h"

namespace tencache {

class UnannouncedWrites {
 public:
  /// Once an extent is cold, looks every `interval`, less often under large budgets (down to a
  /// quarter) and more often while the program writes. If `interval` is 0, it never looks unasked.
  /// The other arguments outlive this object.
  UnannouncedWrites(CpuHeap& heap, const PageMap& page_map, SlotFetches& fetches,
                    SlotEvictions& evictions, std::chrono::milliseconds interval);
  ~UnannouncedWrites() { stop(); }

  /// Call when an extent has become cold.
  void on_cold() TENCACHE_EXCLUDES(mutex_) {
    if (!is_started_.load(std::memory_order_relaxed)) start();
  }
  /// Ends the thread that looks. One thread calls this.
  void stop() TENCACHE_EXCLUDES(mutex_);

  /// Looks through all cold extents and books what it finds. Returns whether that is more than
  /// before.
  bool count() TENCACHE_EXCLUDES(mutex_);

  /// Evicts extents again until `bytes` became free or none is left: those of which half or more
  /// was written, unless more was being written at the last look, or all that have private pages.
  EvictionResult evict_again(uint64_t bytes, bool takes_all) TENCACHE_EXCLUDES(mutex_);

 private:
  // The program counts as writing for this many waits after a look has found writes.
  static constexpr int kQuietWaitsMax = 200;

  struct Written;

  void start() TENCACHE_EXCLUDES(mutex_);
  void work() TENCACHE_EXCLUDES(mutex_);
  bool has_grown();
  bool seems_written(const ListedExtent& listed, uint64_t before) const;
  void set_pace(bool has_found);
  void keep_reserve(bool is_writing);
  std::vector<Written> written_extents(bool takes_all) TENCACHE_EXCLUDES(mutex_);
  EvictionResult evict_batch(const std::vector<Written>& batch);

  // Nothing replaces these after construction.
  CpuHeap& heap_;
  const PageMap& page_map_;
  SlotFetches& fetches_;
  SlotEvictions& evictions_;
  const std::chrono::milliseconds interval_;
  std::unique_ptr<ProcessMemory> memory_;

  std::atomic<bool> is_started_{false};
  std::thread thread_;  // set under mutex_, joined once no other can be started

  // Only the thread uses these, and stop() after the thread has ended.
  uint64_t unexplained_least_ = ~uint64_t{0};  // since the last look through the extents
  uint64_t rest_until_ns_ = 0;
  bool reads_singly_ = false;
  int quiet_waits_ = kQuietWaitsMax;  // since a look found something
  uint64_t reserve_bytes_ = 0;        // in the budget

  Mutex mutex_;
  CondVar stopping_;
  bool is_stopping_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::unordered_set<const Extent*> growing_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
