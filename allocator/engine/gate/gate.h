// SPDX-License-Identifier: Apache-2.0
//
// Gate: every op passes it before it runs. open() pins every extent that the op reads or writes,
// and returns once all of them are usable: resident, or arriving with the op's stream waiting.
// close() unpins them. What the thread allocates while an op is open stays pinned until its
// outermost op closes, because kernels still use such memory after the nested op that allocated it
// has ended (rule R, measured on 697 operators). On the cpu backend the pin ends when the thread
// frees the memory (but not that of a slab).
//
// Each thread keeps a stack of open ops and two lists of pins: what the ops name and the inner
// allocations. The lists keep their capacity, so an op costs no heap allocation. The hot path of
// open() costs one clock reading, and per extent a table load, an atomic add, a store and an event
// record. While plans are followed (engine/plan/plan_cursor.h) it also compares the op with the
// plan's next tick. Some ticks are timed where the device is not the host
// (engine/gate/op_timing.h).
//
// There may be several gates, one per GPU; a thread has a separate state for each gate it passes.
//
// Threads: a stack of open ops belongs to its thread. Any thread may release a Hold (pins that
// outlive their op). The gate calls other parts on the thread that passes it, with no lock held.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/stats.h"
#include "engine/gate/device_waits.h"
#include "engine/gate/op_timer.h"
#include "engine/gate/op_timing.h"
#include "engine/move/mover.h"
#include "engine/parts.h"
#include "engine/plan/plan_cursor.h"
#include "learn/recorder.h"
#include "memory/heap.h"

namespace tencache {

/// Bits, as in the C ABI.
enum class AccessMode : uint32_t {
  kRead = 1,
  kWrite = 2,
  kReadWrite = 3,
  kName = 4,  // the op names the extent but touches no byte of it (a view)
};

constexpr bool is_write(AccessMode mode) {
  return (static_cast<uint32_t>(mode) & static_cast<uint32_t>(AccessMode::kWrite)) != 0;
}

struct Access {
  const void* address = nullptr;
  AccessMode mode = AccessMode::kRead;
};

/// Pins that outlive their op.
struct Hold {
  std::vector<Extent*> extents;
};

class Gate {
 public:
  /// How many gates may exist at once.
  static constexpr size_t kGatesMax = 128;

  /// Copies the pointers to the parts that the gate calls, so those must exist by now.
  explicit Gate(const Parts& parts);
  ~Gate();

  /// `streams` are those the op queues its work in. On the cpu backend there are none: an op is
  /// done when it closes.
  void open(uint32_t op, std::span<const Access> accesses, StreamSet streams = kNoStreams);
  void close();

  /// Call after the calling thread has allocated this extent.
  void on_allocate(Extent* extent);
  /// Call after the calling thread has allocated a block of this slab, which may be cold. For the
  /// learner a slab itself lives for ever, so neither its allocation nor its free is an event.
  void on_allocate_block(Extent* slab);
  /// Call before the calling thread frees this extent. Returns whether the caller unpins it after
  /// that: the thread's open op has allocated it.
  bool on_free(const Extent* extent);
  void on_step();
  /// Call before and after the calling thread makes or waits for room that work in `streams` will
  /// fill. A wait within another one belongs to the outer one.
  void begin_wait_for_room(StreamSet streams);
  void end_wait_for_room();
  /// Counts how long the device has waited since the last call (engine/gate/device_waits.h). Calls
  /// the driver.
  void settle_waits() {
    if (!is_passive_.load(std::memory_order_relaxed)) waits_.settle();
  }
  /// Call before the calling thread makes or waits for room. Within begin_wait_for_room() this
  /// waits for the fetches that were requested ahead of use, as long as queued work keeps the
  /// device busy.
  void let_fetches_go_first();

  /// Returns null when there is nothing to hold.
  Hold* hold(std::span<const Access> accesses, bool and_inner, StreamSet streams = kNoStreams);
  void unhold(Hold* hold);
  /// Marks the extents as never to be evicted. Returns how many were not marked before.
  uint64_t keep_resident(std::span<const Access> accesses);

  /// Whether an op that is open on this thread reads or writes the extent, or has allocated it.
  bool has_announced(const Extent* extent);
  /// The streams of all ops that are open on this thread.
  StreamSet open_streams();

  /// The innermost op that is open on this thread, or "" when there is none.
  std::string current_op() const;

  /// A forked child calls this: from now on every call returns at once.
  void become_passive();

 private:
  struct ThreadOps;

  /// A thread's wait for memory, and perhaps the device's.
  struct Wait {
    uint64_t begin_ns = 0;
    DeviceWaits::Wait device_wait;
    std::optional<OpTiming::Cut> cut;
  };

  static bool is_among_many(ThreadOps& thread, const Extent* extent);
  static bool is_alive(const ThreadOps& ops);
  static pthread_key_t thread_key();
  static void end_thread(void* state);
  ThreadOps& thread_ops();
  ThreadOps& thread_ops_slow();
  ThreadOps* make_thread_ops();
  bool tell_cursor(const ThreadOps& thread, size_t first_pin, uint64_t digest, bool is_chunk);
  void fetch_slow(ThreadOps& thread, size_t first_pin, StreamSet streams, bool is_expected);
  void note_early(Extent* extent);
  void fetch(const std::vector<Extent*>& missing, StreamSet streams);
  Wait begin_wait(StreamSet streams);
  void end_wait(const Wait& wait);
  static void note_seen(Extent* extent, uint64_t now);
  void unpin_down_to(std::vector<Extent*>& pins, size_t count, uint64_t now);
  static bool take_off(std::vector<Extent*>& pins, const Extent* extent);

  // Every op reads the first two, so they share a cache line with the pointers below.
  std::atomic<bool> is_passive_{false};
  const uint64_t generation_;  // unique to this gate
  const size_t place_;         // in the table of gates that are alive

  // Nothing replaces these after construction.
  Heap& heap_;
  Mover* const mover_;
  PlanCursor* const cursor_;
  Prefetcher* const prefetcher_;
  UpcomingUses* const upcoming_;
  Neighbours* const neighbours_;
  Learner* const learner_;
  Chaos* const chaos_;
  Recorder& recorder_;
  Stats& stats_;
  OpTiming timing_;
  DeviceWaits waits_;
};

}  // namespace tencache
