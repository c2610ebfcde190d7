// SPDX-License-Identifier: Apache-2.0
//
// OpSampling: picks the ticks of a thread that are timed on the device. Noting a moment costs the
// thread about a microsecond, so timing is allowed 1/32 of the thread's time by its own clock.
// Unused time may be spent in a burst; after overspending, timing pauses. Within that budget,
// rarely seen ticks go first: after two repetitions of a program the rare large ops are known, not
// only the many small ones. On average every 4th of the others is timed. The strides are random,
// because a fixed stride could meet a long program at the same ticks for ever.
//
// Threads: one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "learn/tick_digest.h"

namespace tencache {

class OpSampling {
 public:
  /// Whether a tick is to be timed. Call at every tick, with the time at which it begins.
  bool wants(uint64_t digest, uint64_t now) {
    const auto earned = static_cast<int64_t>((now - asked_at_) / kSharePart);
    asked_at_ = now;
    credit_ = std::min(credit_ + std::min(earned, kCreditMax), kCreditMax);
    if (credit_ <= 0) return false;
    uint8_t& times_seen = seen_[TickDigest::mix(digest) >> (64 - kSeenBits)];
    if (times_seen < kTimesNew) {
      ++times_seen;
      return true;
    }
    if (--stride_ > 0) return false;
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    stride_ = 1 + static_cast<uint32_t>(random_ >> 32) % kStrideMax;
    return true;
  }

  /// Charges what timing has cost. A call that waits for the device's queue counts at most
  /// kChargeMax: the host is ahead, so the wait costs it nothing.
  void charge(uint64_t spent) { credit_ -= static_cast<int64_t>(std::min(spent, kChargeMax)); }

 private:
  static constexpr uint64_t kSharePart = 32;
  static constexpr int64_t kCreditMax = 1 << 19;   // some dozens of samples
  static constexpr uint64_t kChargeMax = 1 << 16;  // some 20 us
  static constexpr uint8_t kTimesNew = 2;
  static constexpr unsigned kSeenBits = 10;
  static constexpr uint32_t kStrideMax = 7;  // mean 4

  int64_t credit_ = 0;
  uint64_t asked_at_ = 0;
  uint64_t random_ = 1;
  uint32_t stride_ = 1;
  std::array<uint8_t, size_t{1} << kSeenBits> seen_ = {};  // by the top bits of a mixed digest
};

}  // namespace tencache
