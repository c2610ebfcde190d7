// SPDX-License-Identifier: Apache-2.0
//
// Gate: what an op passes before it runs. open() pins every extent the op names and returns when
// all of them are resident; close() unpins them. What the thread allocates while an op is open
// stays pinned until its outermost op closes, because kernels keep using such memory after the
// nested op that allocated it has ended (rule R, measured on 697 operators).
//
// Each thread keeps a stack of open ops (one per open event) and two lists of pins, the ops' inputs
// and the inner allocations; they keep their capacity, so an op costs no heap allocation. The hot
// path is one clock reading, and per extent a table load, an atomic add, a store and a record of
// the event; while plans are followed (engine/plan/plan_cursor.h), also a look at the next tick of
// one. Some ticks are timed where the device is not the host (engine/gate/op_timing.h).
//
// Several gates may be there at once, one for each GPU, and a thread has a state for each it
// passes.
//
// Threads: an open op stack belongs to its thread. Holds (pins that outlive their op) may be given
// up anywhere. The gate calls other parts on the thread that passes it, with no lock held.
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

/// Pins that outlive an op.
struct Hold {
  std::vector<Extent*> extents;
};

class Gate {
 public:
  /// As many may be there at once.
  static constexpr size_t kGatesMax = 128;

  /// Uses the parts that are there already: all but the gate itself.
  explicit Gate(const Parts& parts);
  ~Gate();

  /// `streams`: where the op queues its work; none on the cpu backend, whose ops are done when they
  /// close.
  void open(uint32_t op, std::span<const Access> accesses, StreamSet streams = kNoStreams);
  void close();

  /// Told of every allocation and free of this thread.
  void on_allocate(Extent* extent);
  void on_free(const Extent* extent);
  void on_step();
  /// Around a wait of the calling thread for room that work in `streams` is to fill.
  void begin_wait_for_room(StreamSet streams);
  void end_wait_for_room();
  /// Counts what the device has waited for since (engine/gate/device_waits.h). Calls the driver.
  void settle_waits() {
    if (!is_passive_.load(std::memory_order_relaxed)) waits_.settle();
  }
  /// Waits for the fetches that a plan has ordered, as long as the calling thread is ahead of the
  /// device by what it has queued.
  void let_fetches_go_first();

  /// Null when nothing is to be held.
  Hold* hold(std::span<const Access> accesses, bool and_inner, StreamSet streams = kNoStreams);
  void unhold(Hold* hold);
  /// Returns how many extents were not kept before.
  uint64_t keep_resident(std::span<const Access> accesses);

  /// Whether an op that is open on this thread names the extent, or has allocated it.
  bool has_announced(const Extent* extent);
  /// Those of all ops that are open on this thread.
  StreamSet open_streams();

  /// The innermost op that is open on this thread; "" when there is none.
  std::string current_op() const;

  /// In a forked child: every call returns at once.
  void become_passive();

 private:
  struct ThreadOps;

  /// A wait of a thread for memory, and the device perhaps with it.
  struct Wait {
    uint64_t begin_ns = 0;
    OpTimer::Span* device_wait = nullptr;
    std::optional<OpTiming::Cut> cut;
  };

  static bool is_among_many(ThreadOps& thread, const Extent* extent);
  static bool is_alive(const ThreadOps& ops);
  static pthread_key_t thread_key();
  static void end_thread(void* state);
  ThreadOps& thread_ops();
  ThreadOps& thread_ops_slow();
  ThreadOps* make_thread_ops();
  void fetch_slow(ThreadOps& thread, size_t first_pin, StreamSet streams);
  void fetch(const std::vector<Extent*>& missing, StreamSet streams);
  Wait begin_wait(StreamSet streams);
  void end_wait(const Wait& wait, const LateFetches& late);
  static void note_seen(Extent* extent, uint64_t now);
  void unpin_down_to(std::vector<Extent*>& pins, size_t count, uint64_t now);

  // Constant after construction.
  Heap& heap_;
  Mover* const mover_;
  PlanCursor* const cursor_;
  Prefetcher* const prefetcher_;
  Learner* const learner_;
  Chaos* const chaos_;
  Recorder& recorder_;
  Stats& stats_;
  OpTiming timing_;
  DeviceWaits waits_;
  const uint64_t generation_;  // no other gate has it
  const size_t place_;         // in the table of gates that are alive

  std::atomic<bool> is_passive_{false};
};

}  // namespace tencache
