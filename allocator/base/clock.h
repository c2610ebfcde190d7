// SPDX-License-Identifier: Apache-2.0
//
// Clocks. ticks() is for the hot path: the processor's time stamp counter where there is one
// (about 8 ns), comparable between threads, of unknown rate. now_ns() is CLOCK_MONOTONIC (about
// 25 ns). TickConverter turns the first into the second. thread_work_ns() and process_work_ns() are
// processor time (some 200 ns).
#pragma once

#include <time.h>

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace tencache {

inline uint64_t read_clock_ns(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(time.tv_nsec);
}

inline uint64_t now_ns() { return read_clock_ns(CLOCK_MONOTONIC); }

/// What the calling thread has computed, and the kernel for it.
inline uint64_t thread_work_ns() { return read_clock_ns(CLOCK_THREAD_CPUTIME_ID); }
/// The same of all threads of the process.
inline uint64_t process_work_ns() { return read_clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

inline uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return now_ns();
#endif
}

/// A straight line from ticks to nanoseconds.
struct TickLine {
  uint64_t start_ticks = 0;
  double ns_per_tick = 0;

  /// Nanoseconds since the start; 0 for ticks before it. Keeps the order of its arguments.
  uint64_t ns_since_start(uint64_t at_ticks) const {
    if (at_ticks <= start_ticks) return 0;
    return static_cast<uint64_t>(static_cast<double>(at_ticks - start_ticks) * ns_per_tick);
  }
};

/// Converts ticks by a straight line through two moments: its construction and the call of line().
/// So it needs no calibration pause; it is exact to 1e-4 after some milliseconds of life.
class TickConverter {
 public:
  TickConverter() : start_ticks_(ticks()), start_ns_(now_ns()) {}

  /// Two lines differ in their slope by what the clocks drifted: use one for all that is compared.
  TickLine line() const {
    const uint64_t elapsed_ticks = ticks() - start_ticks_;
    const uint64_t elapsed_ns = now_ns() - start_ns_;
    if (elapsed_ticks == 0) return {start_ticks_, 0};
    return {start_ticks_, static_cast<double>(elapsed_ns) / static_cast<double>(elapsed_ticks)};
  }

 private:
  const uint64_t start_ticks_;
  const uint64_t start_ns_;
};

}  // namespace tencache
