// SPDX-License-Identifier: Apache-2.0
//
// DuplexMeter: whether reads and writes take speed from each other, as on one disk. It compares how
// fast the transfers of one direction are alone, and beside transfers of the other.
//
// Threads: any.
#pragma once

#include <cstdint>

#include "base/mutex.h"
#include "engine/move/move_rate.h"
#include "tier/io_channel.h"

namespace tencache {

class DuplexMeter {
 public:
  /// What end() needs to know of a transfer's beginning.
  struct Begun {
    uint64_t at_ns;
    uint64_t other_busy_ns;  // how long the other direction had been busy until then
  };

  /// Call when a transfer begins, and end() when it ends. The times of several threads may
  /// arrive out of order.
  Begun begin(IoDirection direction, uint64_t now_ns) TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    way(direction).begin(now_ns);
    return {now_ns, other_way(direction).busy_ns(now_ns)};
  }
  /// Call when a transfer ends. `bytes` is 0 if it failed: a failure may take any time, so it tells
  /// nothing of the speed.
  void end(IoDirection direction, const Begun& begun, uint64_t bytes, uint64_t now_ns)
      TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    way(direction).end(now_ns);
    if (bytes == 0) return;
    const uint64_t took_ns = since(begun.at_ns, now_ns);
    const uint64_t beside_ns = since(begun.other_busy_ns, other_way(direction).busy_ns(now_ns));
    const uint64_t border_ns = took_ns / kBorderPart;
    if (beside_ns <= border_ns) way(direction).alone.add(bytes, took_ns);
    if (beside_ns >= took_ns - border_ns) way(direction).beside.add(bytes, took_ns);
  }

  /// How much both directions together carry at once, over what they carry in turn: 1 on a link
  /// that they share, 2 where each has its own. Returns 0 until both have been seen both ways.
  double gain_of_both() const TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const double read_share = read_.share_beside();
    const double write_share = write_.share_beside();
    return read_share > 0 && write_share > 0 ? read_share + write_share : 0;
  }
  /// Whether a plan had better let them take turns.
  bool is_half_duplex() const TENCACHE_EXCLUDES(mutex_) {
    const double gain = gain_of_both();
    return gain > 0 && gain < kHalfDuplexGainMax;
  }
  /// Returns the speed while the other direction is idle, or `unknown` until enough has moved to
  /// tell.
  double bytes_per_s_alone(IoDirection direction, double unknown) const TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return (direction == IoDirection::kRead ? read_ : write_).alone.bytes_per_s(unknown);
  }

 private:
  // A transfer counts as alone if the other direction was busy for at most one part in this many of
  // the transfer's time. It counts as beside the other if that was idle for no longer.
  static constexpr uint64_t kBorderPart = 8;
  // Below this gain they share a link. It lies well below 2, because moves beside each other also
  // take processor time from each other.
  static constexpr double kHalfDuplexGainMax = 1.25;

  static constexpr uint64_t since(uint64_t begin_ns, uint64_t end_ns) {
    return end_ns > begin_ns ? end_ns - begin_ns : 0;
  }

  struct Way {
    uint32_t under_way = 0;
    uint64_t busy_since_ns = 0;  // while something is under way
    uint64_t busy_before_ns = 0;
    MoveRate alone;
    MoveRate beside;

    void begin(uint64_t now_ns) {
      if (under_way++ == 0) busy_since_ns = now_ns;
    }
    void end(uint64_t now_ns) {
      if (--under_way == 0) busy_before_ns += since(busy_since_ns, now_ns);
    }
    uint64_t busy_ns(uint64_t now_ns) const {
      return busy_before_ns + (under_way > 0 ? since(busy_since_ns, now_ns) : 0);
    }
    double share_beside() const {
      const double alone_speed = alone.bytes_per_s(0);
      return alone_speed > 0 ? beside.bytes_per_s(0) / alone_speed : 0;
    }
  };

  Way& way(IoDirection direction) TENCACHE_REQUIRES(mutex_) {
    return direction == IoDirection::kRead ? read_ : write_;
  }
  Way& other_way(IoDirection direction) TENCACHE_REQUIRES(mutex_) {
    return direction == IoDirection::kRead ? write_ : read_;
  }

  mutable Mutex mutex_;
  Way read_ TENCACHE_GUARDED_BY(mutex_);
  Way write_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
