// SPDX-License-Identifier: Apache-2.0
//
// Heap: what the engine asks of the memory that extents live in, on any backend: which extent is at
// an address, which extents there are, and room in the budget. A backend's heap (memory/cpu_heap.h,
// memory/cuda/cuda_heap.h) adds allocation itself. It also keeps freed extents for reuse: they
// count as use of the device tier, and go first when room is needed. Live and cached memory
// together stay near what the program has lately needed at once (memory/live_peak.h).
//
// Invariants
//   1. Bytes of every extent that is Resident, Evicting, Sealing, Merging, Arriving or Cached, and
//      of every small block, are reserved in the budget. Those of an extent that is Fetching are
//      reserved in the course of the fetch.
//   2. The table names every extent that is not Vacant.
//
// Threads: any. Nothing here takes a lock; the backend's heap has its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/options.h"
#include "base/stats.h"
#include "base/status.h"
#include "memory/budget.h"
#include "memory/extent.h"
#include "memory/extent_table.h"
#include "memory/live_peak.h"

namespace tencache {

struct HeapConfig {
  uint64_t extent_min_bytes = kDefaultExtentMinBytes;
  uint64_t extent_count_max = 16'000;  // on the cpu each extent may take three of vm.max_map_count
  uint64_t request_bytes_max = ~uint64_t{0};  // what the machine holds; larger requests fail
  bool strict = false;
  uint64_t (*clock)() = &now_ns;  // for how long freed memory is kept
};

/// What the heap asks of the layer above it.
class RoomMaker {
 public:
  virtual ~RoomMaker() = default;
  /// Waits until `bytes` could be reserved in the budget, and reserves them. The caller will ask
  /// for `soon_bytes` right after that, so their room is made in the same go. Returns false when
  /// nothing is left that may be evicted; `reason` then tells whether a lower tier is to blame
  /// (else it is ok).
  virtual bool make_room(uint64_t bytes, uint64_t soon_bytes, Status* reason) = 0;
  /// The budget's attention mark was passed. The heap calls this often, so it must be cheap when
  /// there is nothing to do.
  virtual void on_attention() = 0;
  /// Does what Heap::await_any_room() promises.
  virtual void await_any_room(uint64_t /*bytes*/, uint64_t /*soon_bytes*/) {}
  /// The op this thread is in, for messages. Returns "" when it is unknown.
  virtual std::string current_op() const = 0;
  /// The heap calls these before and after the calling thread makes or waits for room that work in
  /// `streams` will fill. A wait within another one belongs to the outer one.
  virtual void begin_wait(StreamSet streams) = 0;
  virtual void end_wait() = 0;
  /// Whether tensors may leave by now.
  virtual bool is_armed() const { return false; }
  /// Whether the disk takes nothing now.
  virtual bool is_disk_failing() const { return false; }
};

struct Allocation {
  void* address = nullptr;
  Extent* extent = nullptr;  // the extent it lies in; null for a small block that cannot leave
};

/// An extent as it was when listed. Its address and bytes are copied under the heap's lock, because
/// the extent may be recycled at any moment; its state word tells what it is now.
struct ListedExtent {
  Extent* extent = nullptr;
  const char* address = nullptr;
  uint64_t bytes = 0;
};

class Heap {
 public:
  /// `slack_share`: see LivePeak.
  Heap(const HeapConfig& config, uint64_t slack_share, ExtentTable& table, Budget& budget,
       Stats& stats)
      : config_(config), table_(table), budget_(budget), stats_(stats), live_peak_(slack_share) {}
  virtual ~Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// Call once, before the first allocation.
  void set_room_maker(RoomMaker* room_maker) { room_maker_ = room_maker; }

  Extent* find(const void* address) const { return table_.find(address); }

  /// All extent objects, including Vacant ones.
  virtual std::vector<ListedExtent> extents() const = 0;
  uint64_t extent_count() const { return extent_count_.load(std::memory_order_relaxed); }
  uint64_t cached_bytes() const { return cached_bytes_.load(std::memory_order_relaxed); }
  /// Bytes that the program has, small blocks included.
  uint64_t live_bytes() const {
    const uint64_t used = budget_.used();
    return used - std::min(used, cached_bytes() + others_bytes());
  }
  /// Bytes of the budget that other programs use on the GPU.
  uint64_t others_bytes() const { return others_bytes_.load(std::memory_order_relaxed); }
  /// Whether cached memory serves a request of any size, and so is as good as free.
  virtual bool can_use_any_cached() const { return false; }
  /// Bytes of small blocks, which are no extents and so never leave.
  virtual uint64_t small_bytes() const = 0;
  /// Bytes that the program wrote to cold extents without an op.
  virtual uint64_t unannounced_bytes() const { return 0; }

  /// Gives cached extents back, oldest first, then what small blocks keep, until `bytes` are
  /// released or none is left. Returns how many bytes were released. May wait for the device, for
  /// one stream after another.
  virtual uint64_t drop_cached(uint64_t bytes) = 0;
  /// Gives back likewise only those cached extents that the device is done with; waits for nothing.
  virtual uint64_t drop_idle_cached(uint64_t bytes) { return drop_cached(bytes); }
  /// Gives back likewise memory that the device is done with, including what small blocks keep.
  /// Memory that only work in `streams` may still use goes, too, where it makes up a good part of
  /// `bytes`. Waits for no other stream: that one may need the calling thread to go on.
  virtual uint64_t drop_cached_of(uint64_t bytes, StreamSet /*streams*/) {
    return drop_cached(bytes);
  }
  /// Gives memory that small blocks keep back, as far as the device is done with it; waits for
  /// nothing.
  virtual uint64_t drop_idle_segments(uint64_t /*bytes*/) { return 0; }
  /// Gives back everything that nobody uses, and returns its bytes. May wait for the device.
  virtual uint64_t empty_cache() = 0;

  /// Climbs the ladder (climb() in memory/heap.cpp) to reserve room on the device tier. Work in
  /// `streams` will fill that room. Returns kOutOfMemory where a rung refuses; the last rung goes
  /// over the budget.
  /// From the point where idle cached extents do not suffice, the call counts as a wait.
  Status reserve(uint64_t bytes, uint64_t requested_bytes, StreamSet streams = kNoStreams);
  /// Reserves room likewise for what cannot be refused (a fetch): the heap goes over the budget
  /// instead, and counts that. The wait is part of the fetch's, which the caller counts. The caller
  /// asks for `soon_bytes` next. Where a full or failing disk is to blame, the heap is in debt
  /// then.
  void reserve_or_exceed(uint64_t bytes, uint64_t soon_bytes, StreamSet streams = kNoStreams);
  /// Counts that `bytes` more went over the budget; `act` tells what the program did with them.
  void count_over_budget(uint64_t bytes, uint64_t excess_bytes, const char* act = "asked for");
  /// A guess whether this much is free or cached.
  bool may_have_room(uint64_t bytes) const { return budget_.free() + cached_bytes() >= bytes; }
  /// Waits until this much is free or cached, where cached memory is as good as free. Then what
  /// leaves need not give its pages back to the kernel first. This is a guess: another thread may
  /// take the bytes.
  void await_any_room(uint64_t bytes, uint64_t soon_bytes = 0);

  /// While the heap is in debt, only ops that may not stop halfway may allocate. So the budget is
  /// exceeded by what such ops need, and not by what the program needs in the end. The debt is paid
  /// when what is used fits the budget again.
  bool is_in_debt() const { return is_in_debt_.load(std::memory_order_relaxed); }

  /// Call it before an op that may not stop halfway. Returns OK as long as the disk takes
  /// something, or if all that the op names can be resident at once. Otherwise the error says why
  /// nothing can leave.
  Status admit(std::span<Extent* const> extents);
  /// Between the two calls, the calling thread is in an op that may not stop halfway: no heap
  /// refuses it memory because of the disk. The heap goes over the budget instead, and the debt is
  /// paid later. Such ops nest.
  static void begin_whole_op();
  static void end_whole_op();

  /// Lets the oldest extents leave that no op has named, until they make `bytes` and the headroom
  /// that a pass makes besides. Returns false when none is left, or cold bytes are not usable.
  bool let_unnamed_leave(uint64_t bytes);

  /// Whether room must become free, and cached memory is not enough: a thread waits for some right
  /// now, or the budget is exceeded.
  bool needs_free_room() const {
    return room_waiters_.load(std::memory_order_relaxed) > 0 || budget_.used() > budget_.limit();
  }

  /// Call in a forked child: from then on nothing of the parent's is given back.
  void become_passive() { is_passive_.store(true, std::memory_order_relaxed); }

  /// Tells the layer above that use is past the attention mark.
  void call_attention() { room_maker_->on_attention(); }

  Budget& budget() { return budget_; }

 protected:
  /// Notes whether the program itself has set a bound. A request that does not fit below the
  /// bound, once everything that may leave has left, is refused instead of exceeding the budget.
  void set_bounded(bool is_bounded) { is_bounded_.store(is_bounded, std::memory_order_relaxed); }
  /// Call before an allocation while in debt. Returns OK when the debt is paid, or when the thread
  /// is in an op that may not stop halfway; otherwise the error says why the debt cannot be paid.
  Status pay_debt(uint64_t requested_bytes);

  /// While it lives, the calling thread makes or waits for room that work in `streams` will fill.
  class RoomWait {
   public:
    RoomWait(const Heap& heap, StreamSet streams) : room_maker_(*heap.room_maker_) {
      room_maker_.begin_wait(streams);
    }
    ~RoomWait() { room_maker_.end_wait(); }
    RoomWait(const RoomWait&) = delete;
    RoomWait& operator=(const RoomWait&) = delete;

   private:
    RoomMaker& room_maker_;
  };

  /// What the device holds at most, however far the budget is exceeded.
  virtual uint64_t device_bytes_max() const { return ~uint64_t{0}; }
  /// Whether a lower --extent-min would make smaller tensors leave.
  virtual bool may_extents_be_smaller() const { return true; }
  /// Whether tensors may leave by now.
  bool is_armed() const { return room_maker_->is_armed(); }
  /// Whether cold bytes stay usable for code that passes no gate.
  virtual bool is_cold_usable() const = 0;
  bool is_passive() const { return is_passive_.load(std::memory_order_relaxed); }
  uint64_t next_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  /// Updates the peak of live bytes. Call after an allocation.
  void note_live() {
    const uint64_t live = live_bytes();
    live_peak_.note(live);
    raise_to(stats_.peak_live_bytes, live);
  }
  /// Call now and then, with the number of extents that were ever freed.
  void look_at_time(uint64_t frees) { live_peak_.look_at_time(config_.clock(), frees); }
  /// How much live and freed memory together may take, once this many bytes are live.
  uint64_t allowed_bytes(uint64_t live = 0) const { return live_peak_.allowed_bytes(live); }
  /// Memory that was freed since the budget was exceeded goes back, instead of being handed out
  /// again.
  void drop_cached_above_budget() {
    const uint64_t excess_bytes = budget_.excess();
    if (excess_bytes > 0) drop_idle_cached(excess_bytes);
  }
  /// Reserves `bytes` more of the budget, by eviction if need be. Returns false when nothing is
  /// left that may be evicted.
  bool evict_more(uint64_t bytes);
  /// The error for a request that no eviction could ever make room for.
  Status never_fits(uint64_t requested_bytes, uint64_t bytes_max) const;

  // These four are constant after construction.
  const HeapConfig config_;
  ExtentTable& table_;
  Budget& budget_;
  Stats& stats_;

  LivePeak live_peak_;

  // Allocating and freeing threads write these figures. Limits and statistics read them, and need
  // no exact figures across threads.
  std::atomic<uint64_t> extent_count_{0};
  std::atomic<uint64_t> cached_bytes_{0};
  std::atomic<uint64_t> others_bytes_{0};  // of the budget, in use by others on the GPU

 private:
  struct WantedRoom {
    uint64_t bytes = 0;
    uint64_t requested_bytes = 0;    // what the program asked for, for messages
    uint64_t soon_bytes = 0;         // what the caller asks for next
    StreamSet streams = kNoStreams;  // whose work will fill it
  };

  /// `reason` tells why nothing could leave, if a lower tier is to blame.
  Status climb(const WantedRoom& wanted, Status* reason);
  void exceed(uint64_t bytes, const Status& reason);
  void note_debt(uint64_t bytes, uint64_t excess_bytes, const Status& reason);
  bool await_room(const WantedRoom& wanted, Status* reason);
  bool take_cached_of(const WantedRoom& wanted);
  bool is_worth_a_warning(uint64_t excess_bytes);
  Status refusal(uint64_t requested_bytes, const std::string& rest) const;
  Status out_of_memory(const WantedRoom& wanted, const Status& reason) const;
  Status beyond_device(const WantedRoom& wanted) const;

  RoomMaker* room_maker_ = nullptr;
  std::atomic<uint32_t> room_waiters_{0};
  std::atomic<uint64_t> next_id_{1};
  std::atomic<bool> is_passive_{false};
  std::atomic<bool> is_bounded_{false};
  std::atomic<bool> is_in_debt_{false};
  // The largest excess that a warning has named. Once a debt has been warned of, it is the largest
  // possible one.
  std::atomic<uint64_t> warned_excess_bytes_{0};
  std::atomic<bool> warned_debt_{false};
};

}  // namespace tencache
