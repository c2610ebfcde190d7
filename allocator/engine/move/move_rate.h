// SPDX-License-Identifier: Apache-2.0
//
// MoveRate: how long moves of one kind really take for their bytes, weighted towards the newest.
// The time is wall time, hashing and copying included, or processor time. Plans rely on it. Where
// several moves run at once, each counts the whole time, as if the link were slower.
//
// Threads: any; lock-free. Additions that race may lose each other, which only costs precision.
#pragma once

#include <atomic>
#include <cstdint>

namespace tencache {

class MoveRate {
 public:
  void add(uint64_t bytes, uint64_t ns) {
    if (ns > kDoubtfulNs && is_doubtful(bytes, ns)) return;
    uint64_t all_bytes = bytes_.load(std::memory_order_relaxed) + bytes;
    uint64_t all_ns = ns_.load(std::memory_order_relaxed) + ns;
    if (all_bytes > kWindowBytes) {
      all_bytes /= 2;
      all_ns /= 2;
    }
    bytes_.store(all_bytes, std::memory_order_relaxed);
    ns_.store(all_ns, std::memory_order_relaxed);
  }

  /// Returns `unknown` until enough has moved to tell.
  double bytes_per_s(double unknown) const {
    const uint64_t bytes = bytes_.load(std::memory_order_relaxed);
    const uint64_t ns = ns_.load(std::memory_order_relaxed);
    if (bytes < kBytesMin || ns == 0) return unknown;
    return static_cast<double>(bytes) / static_cast<double>(ns) * 1e9;
  }
  double ns_per_byte(double unknown) const {
    const uint64_t bytes = bytes_.load(std::memory_order_relaxed);
    if (bytes < kBytesMin) return unknown;
    return static_cast<double>(ns_.load(std::memory_order_relaxed)) / static_cast<double>(bytes);
  }

 private:
  // Whether to leave this move out, as the first that took far too long. Otherwise a process that
  // was stopped during a move would take its link for slow until gigabytes have moved. A link that
  // really is so slow shows it with the next move.
  bool is_doubtful(uint64_t bytes, uint64_t ns) {
    const double expected_ns = ns_per_byte(0) * static_cast<double>(bytes);  // 0: unknown
    const bool is_late = expected_ns > 0 && static_cast<double>(ns) > kDoubtfulRatio * expected_ns;
    return !was_doubtful_.exchange(is_late, std::memory_order_relaxed) && is_late;
  }

  static constexpr uint64_t kWindowBytes = uint64_t{2} << 30;
  static constexpr uint64_t kBytesMin = uint64_t{16} << 20;
  static constexpr uint64_t kDoubtfulNs = 10'000'000'000;
  static constexpr double kDoubtfulRatio = 50;

  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> ns_{0};
  std::atomic<bool> was_doubtful_{false};
};

}  // namespace tencache
