// SPDX-License-Identifier: Apache-2.0
//
// DeviceWaits: for how long a device stood still because bytes or room were not there, and which
// fetches came too late for it. On a GPU the threads that queue ops run ahead and wait while the
// device computes, so their clocks do not tell: a wait is one event in the op's stream before the
// thread waits and one behind all that the stream itself was made to wait for, and what lies
// between the two is the device's wait. Where there are no such events (the cpu backend, an op of
// several streams, a stream that captures a graph) the device waits as long as the thread does.
//
// Threads: a wait is begun and ended by one thread; settle() by any. mutex_ is a leaf, and is held
// for bookkeeping only.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/mutex.h"
#include "base/stats.h"
#include "engine/gate/op_timer.h"
#include "engine/move/mover.h"

namespace tencache {

class DeviceWaits {
 public:
  /// `timer` is null where threads and device are one; it and `stats` outlive this.
  DeviceWaits(OpTimer* timer, Stats& stats) : timer_(timer), stats_(stats) {}

  /// The calling thread is about to wait for what these streams need. Null where the device cannot
  /// tell.
  OpTimer::Span* begin(StreamSet streams);
  /// It has waited, and the streams have been made to wait for the rest; `late` came in the wait.
  void end(OpTimer::Span* wait, uint64_t thread_ns, const LateFetches& late)
      TENCACHE_EXCLUDES(mutex_);
  /// Counts the waits that the device has come through since. Calls the driver.
  void settle() TENCACHE_EXCLUDES(mutex_);

 private:
  void count(uint64_t device_ns, const LateFetches& late) const;

  OpTimer* const timer_;
  Stats& stats_;
  Mutex mutex_;
  uint64_t begun_count_ TENCACHE_GUARDED_BY(mutex_) = 0;
  // By the number of the wait, what its verdict decides; waits without fetches have no entry.
  std::unordered_map<uint64_t, LateFetches> undecided_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
