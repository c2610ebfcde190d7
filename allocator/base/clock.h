// SPDX-License-Identifier: Apache-2.0
//
// Clocks. timestamp() is for the hot path: it reads the processor's time stamp counter where there
// is one (about 8 ns). Its values are comparable between threads, and their rate is unknown.
// now_ns() is CLOCK_MONOTONIC (about 25 ns). TimestampConverter turns timestamps into nanoseconds.
// thread_work_ns() and process_work_ns() are processor time (some 200 ns).
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

/// Processor time of the calling thread, the kernel's work for it included.
inline uint64_t thread_work_ns() { return read_clock_ns(CLOCK_THREAD_CPUTIME_ID); }
/// Processor time of all threads of the process.
inline uint64_t process_work_ns() { return read_clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

inline uint64_t timestamp() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return now_ns();  // aarch64's counter, once a barrier has made it comparable, is no faster
#endif
}

/// A straight line from timestamps to nanoseconds.
struct TimestampLine {
  uint64_t start = 0;
  double ns_per_unit = 0;

  /// Nanoseconds since the start, or 0 for earlier timestamps. Keeps the order of its arguments.
  uint64_t ns_since_start(uint64_t at) const {
    if (at <= start) return 0;
    return static_cast<uint64_t>(static_cast<double>(at - start) * ns_per_unit);
  }
};

/// Converts timestamps by a straight line through two moments: its construction and the call of
/// line(). So it needs no calibration pause; it is exact to 1e-4 after some milliseconds of life.
class TimestampConverter {
 public:
  TimestampConverter() : start_(timestamp()), start_ns_(now_ns()) {}

  /// The line through the construction and this call. Two lines differ in slope as far as the
  /// clocks drifted: use one line for all values that are compared with each other.
  TimestampLine line() const {
    const uint64_t elapsed = timestamp() - start_;
    const uint64_t elapsed_ns = now_ns() - start_ns_;
    if (elapsed == 0) return {start_, 0};
    return {start_, static_cast<double>(elapsed_ns) / static_cast<double>(elapsed)};
  }

 private:
  const uint64_t start_;
  const uint64_t start_ns_;
};

}  // namespace tencache
