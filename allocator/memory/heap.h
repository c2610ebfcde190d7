// SPDX-License-Identifier: Apache-2.0
//
// Heap: what the engine asks of the memory that extents live in, whatever backend it belongs to:
// which extent is at an address, which extents there are, and room in the budget. A backend's heap
// (memory/cpu_heap.h, memory/cuda/cuda_heap.h) adds allocation itself, and keeps freed extents for
// reuse: they are part of the device tier's use, and the first thing that goes when room is needed.
//
// Invariants
//   1. Bytes of every extent that is Resident, Evicting, Sealing, Fetching, Merging, Arriving or
//      Cached, and of every small block, are reserved in the budget.
//   2. The table names every extent that is not Vacant.
//
// Threads: any. Nothing here takes a lock; the backend's heap has one of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/stats.h"
#include "base/status.h"
#include "memory/budget.h"
#include "memory/extent.h"
#include "memory/extent_table.h"

namespace tencache {

struct HeapConfig {
  uint64_t extent_min_bytes = kDefaultExtentMinBytes;
  uint64_t extent_count_max = 16'000;         // on the cpu each may cost three of vm.max_map_count
  uint64_t request_bytes_max = ~uint64_t{0};  // what the machine holds; nothing above works
  bool strict = false;
};

/// What the heap asks of the layer above it.
class RoomMaker {
 public:
  virtual ~RoomMaker() = default;
  /// Waits until `bytes` could be reserved in the budget, and reserves them; as much as
  /// `soon_bytes` is asked for right after that, so that its room is made in the same go. False
  /// when nothing that may be evicted is left; `reason` then says whether a lower tier is to blame
  /// (else it is ok).
  virtual bool make_room(uint64_t bytes, uint64_t soon_bytes, Status* reason) = 0;
  /// The budget's attention mark was passed. Called often; must be cheap when nothing is to do.
  virtual void on_attention() = 0;
  /// The op this thread is in, for messages; "" when none is known.
  virtual std::string current_op() const = 0;
  /// Around a wait of the calling thread for room that work in `streams` is to fill.
  virtual void begin_wait(StreamSet streams) = 0;
  virtual void end_wait() = 0;
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
  Heap(const HeapConfig& config, ExtentTable& table, Budget& budget, Stats& stats)
      : config_(config), table_(table), budget_(budget), stats_(stats) {}
  virtual ~Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// Set once, before the first allocation.
  void set_room_maker(RoomMaker* room_maker) { room_maker_ = room_maker; }

  Extent* find(const void* address) const { return table_.find(address); }

  /// Every extent object there is, Vacant ones included.
  virtual std::vector<ListedExtent> extents() const = 0;
  uint64_t extent_count() const { return extent_count_.load(std::memory_order_relaxed); }
  uint64_t cached_bytes() const { return cached_bytes_.load(std::memory_order_relaxed); }
  /// Whether what is cached serves a request of any size, so that it is as good as free.
  virtual bool can_use_any_cached() const { return false; }
  /// Of blocks that are no extents and so never leave.
  virtual uint64_t small_bytes() const = 0;

  /// Gives cached extents back, oldest first, then what small blocks keep, until `bytes` are
  /// released or none is left; returns what was released.
  virtual uint64_t drop_cached(uint64_t bytes) = 0;
  /// The same of cached extents that a device is done with: waits for nothing.
  virtual uint64_t drop_idle_cached(uint64_t bytes) { return drop_cached(bytes); }

  /// Reserves room for bytes on the device tier, which work in `streams` is to fill: the ladder.
  /// kOutOfMemory as its last rung. What idle cached extents do not give counts as a wait.
  Status reserve(uint64_t bytes, uint64_t requested_bytes, StreamSet streams = kNoStreams);
  /// The same for what cannot be refused (a fetch): goes over the budget instead, and counts it.
  /// The wait is part of the fetch's, which its caller counts. `soon_bytes`: what it asks for next.
  void reserve_or_exceed(uint64_t bytes, uint64_t soon_bytes = 0);

  /// Whether room has to become free, and cached is not enough: a thread waits for some right now,
  /// or the budget is exceeded.
  bool needs_free_room() const {
    return room_waiters_.load(std::memory_order_relaxed) > 0 || budget_.used() > budget_.limit();
  }

  /// In a forked child: nothing of the parent's is given back.
  void become_passive() { is_passive_.store(true, std::memory_order_relaxed); }

  /// Tells the layer above that use is past the attention mark.
  void call_attention() { room_maker_->on_attention(); }

  Budget& budget() { return budget_; }
  /// Whether the program itself has set a bound: what does not fit below it when all that may leave
  /// has left is refused, instead of exceeding the budget.
  void set_bounded(bool is_bounded) { is_bounded_.store(is_bounded, std::memory_order_relaxed); }

 protected:
  /// Whether what is cold can be used all the same, by whoever does so without a gate.
  virtual bool is_cold_usable() const = 0;
  bool is_passive() const { return is_passive_.load(std::memory_order_relaxed); }
  uint64_t next_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  /// Makes `bytes` more of the budget free by eviction and reserves them; false when nothing is
  /// left that may be evicted.
  bool evict_more(uint64_t bytes);
  /// The error for a request that no eviction could ever make room for.
  Status never_fits(uint64_t requested_bytes, uint64_t bytes_max) const;

  // Constant after construction.
  const HeapConfig config_;
  ExtentTable& table_;
  Budget& budget_;
  Stats& stats_;

  // Written by whoever allocates or frees, read for limits and statistics: exactness over several
  // threads is not needed.
  std::atomic<uint64_t> extent_count_{0};
  std::atomic<uint64_t> cached_bytes_{0};

 private:
  Status climb(uint64_t bytes, uint64_t requested_bytes, uint64_t soon_bytes);
  bool await_room(uint64_t bytes, uint64_t soon_bytes, Status* reason);
  bool count_all_as_seen();
  void count_over_budget(uint64_t bytes, uint64_t excess_bytes);
  Status out_of_memory(uint64_t bytes, uint64_t requested_bytes, const Status& reason) const;

  RoomMaker* room_maker_ = nullptr;
  std::atomic<uint32_t> room_waiters_{0};
  std::atomic<uint64_t> next_id_{1};
  std::atomic<bool> is_passive_{false};
  std::atomic<bool> all_are_seen_{false};
  std::atomic<bool> is_bounded_{false};
  std::atomic<bool> warned_over_budget_{false};
};

}  // namespace tencache
