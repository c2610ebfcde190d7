// SPDX-License-Identifier: Apache-2.0
//
// DeviceWaits: measures how long a device stood still for want of bytes or room, and which fetches
// came too late for the device. On a GPU the threads that queue ops run ahead of the device and may
// wait while it computes, so their clocks say nothing. A wait is therefore measured by two events
// in the op's stream: one recorded before the thread waits, one behind everything that the stream
// itself was made to wait for. The time between them is the device's wait. Where an op waits for
// several fetches, the wait for each batch is a part of its own, up to kPartsMax parts, because
// only the last one or two may have come too late. Where there are no such events (the cpu backend,
// an op of several streams, a stream that captures a graph, all events in use) the device is taken
// to wait as long as the thread does.
//
// Threads: one thread begins and ends a wait; any thread calls settle(). mutex_ is a leaf, held
// only for bookkeeping.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/mutex.h"
#include "base/stats.h"
#include "engine/gate/op_timer.h"
#include "engine/move/move_ledger.h"

namespace tencache {

class DeviceWaits {
 public:
  /// One wait of one thread, or the part of it that has begun.
  struct Wait final : OpWait {
    void begin_part() override { waits->begin_part(this); }
    void add(const LateFetches& more) override {
      late.count += more.count;
      late.bytes += more.bytes;
    }

    DeviceWaits* waits = nullptr;
    OpTimer::Span* span = nullptr;  // null where the device cannot tell
    LateFetches late;               // arrived during this part
    int parts_left = kPartsMax;
  };
  static constexpr int kPartsMax = 16;

  /// `timer` is null on the cpu backend, where the threads compute; it and `stats` outlive this
  /// object.
  DeviceWaits(OpTimer* timer, Stats& stats) : timer_(timer), stats_(stats) {}

  /// Call before the calling thread waits for what these streams need.
  Wait begin(StreamSet streams);
  /// Call after the wait, when the streams have been made to wait for the rest.
  void end(const Wait& wait, uint64_t thread_ns) TENCACHE_EXCLUDES(mutex_);
  /// Counts the waits that the device has finished since the last call. Calls the driver.
  void settle() TENCACHE_EXCLUDES(mutex_);

 private:
  void begin_part(Wait* wait) TENCACHE_EXCLUDES(mutex_);
  OpTimer::Span* begin_span(StreamSet streams) TENCACHE_EXCLUDES(mutex_);
  void finish(OpTimer::Span* span, const LateFetches& late) TENCACHE_EXCLUDES(mutex_);
  void count(uint64_t device_ns, const LateFetches& late) const;

  OpTimer* const timer_;
  Stats& stats_;
  Mutex mutex_;
  uint64_t begun_count_ TENCACHE_GUARDED_BY(mutex_) = 0;
  // Fetches that count as late or early once their wait is measured, by the number of the wait or
  // of its part. A wait or part without fetches has no entry.
  std::unordered_map<uint64_t, LateFetches> undecided_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
