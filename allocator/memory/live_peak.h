// SPDX-License-Identifier: Apache-2.0
//
// LivePeak: the most that a program has lately had at once, and so how much freed memory is worth
// keeping. A program that repeats itself reaches its peak again and again, and then wants its freed
// memory back. One that has left a phase behind does not. So the peak is that of two windows of
// time, the running one and the one before it. By default jemalloc lets unused memory decay over
// the same time. A window also lasts for some thousand frees, because a step of a large model may
// take longer than that.
//
// Threads: any; lock-free. A peak that is noted while another thread ends the window may be
// forgotten a window too early, which only costs pages.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/stats.h"

namespace tencache {

class LivePeak {
 public:
  static constexpr uint64_t kWindowNs = 10'000'000'000;
  static constexpr uint64_t kWindowFrees = 4096;
  /// After how many frees a heap looks again at the time, and at whether it holds more than
  /// allowed. A look costs a reading of the clock.
  static constexpr uint64_t kFreesPerLook = 64;

  /// One part in `slack_share` of the peak is kept beyond it, because sizes do not always add up.
  explicit LivePeak(uint64_t slack_share) : slack_share_(slack_share) {}

  /// The program has this much now.
  void note(uint64_t live_bytes) { raise_to(peak_bytes_, live_bytes); }

  /// Ends the window if it is over. Call it now and then, with the number of frees so far.
  void look_at_time(uint64_t now_ns, uint64_t frees) {
    uint64_t begin_ns = begin_ns_.load(std::memory_order_relaxed);
    if (begin_ns != 0 && (now_ns - begin_ns < kWindowNs ||
                          frees - begin_frees_.load(std::memory_order_relaxed) < kWindowFrees)) {
      return;
    }
    if (!begin_ns_.compare_exchange_strong(begin_ns, now_ns, std::memory_order_relaxed)) return;
    begin_frees_.store(frees, std::memory_order_relaxed);
    if (begin_ns == 0) return;  // the first window begins
    previous_peak_bytes_.store(peak_bytes_.exchange(0, std::memory_order_relaxed),
                               std::memory_order_relaxed);
  }

  /// The peak of both windows.
  uint64_t recent_bytes() const {
    return std::max(value_of(previous_peak_bytes_), value_of(peak_bytes_));
  }

  /// How much live and cached memory together may take, once this many bytes are live.
  uint64_t allowed_bytes(uint64_t live_bytes = 0) const {
    const uint64_t peak_bytes = std::max(recent_bytes(), live_bytes);
    return peak_bytes + peak_bytes / slack_share_;
  }

 private:
  const uint64_t slack_share_;
  std::atomic<uint64_t> begin_ns_{0};  // of the running window; 0: none has begun
  std::atomic<uint64_t> begin_frees_{0};
  Counter peak_bytes_{0};
  Counter previous_peak_bytes_{0};
};

}  // namespace tencache
