// SPDX-License-Identifier: Apache-2.0
//
// Budget: how many bytes may be on the device tier. Bytes are reserved before they are used and
// released after they are gone. What the program writes in cold extents is reserved afterwards.
// try_reserve() never passes the limit. force_reserve() may, for what cannot wait (the working set
// of one op, bytes that are there already); its callers count the excess, except MallocUse::trim().
//
// The attention mark is how much may be used before the owner wants to hear of it: first the share
// at which hooks arm, later the one at which the evictor starts to make room.
//
// Headroom is the part of a budget that the evictor keeps free, so that coming allocations need not
// wait. Plans therefore do not count on it.
//
// Figures change between two reads, so read each one once per calculation. Every call is lock-free.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/check.h"
#include "base/stats.h"
#include "base/units.h"

namespace tencache {

class Budget {
 public:
  Budget(uint64_t limit_bytes, uint64_t attention_bytes, Counter& peak_bytes)
      : limit_bytes_(limit_bytes), attention_bytes_(attention_bytes), peak_bytes_(peak_bytes) {}

  bool try_reserve(uint64_t bytes) {
    uint64_t used = used_bytes_.load(std::memory_order_relaxed);
    do {
      const uint64_t limit_bytes = limit();
      if (bytes > limit_bytes || used > limit_bytes - bytes) return false;
    } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    raise_to(peak_bytes_, used + bytes);
    return true;
  }

  /// Returns by how many bytes the limit is exceeded now.
  uint64_t force_reserve(uint64_t bytes) {
    const uint64_t used = used_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    raise_to(peak_bytes_, used);
    return above(used, limit());
  }

  void release(uint64_t bytes) {
    const uint64_t used = used_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    TENCACHE_DCHECK(used >= bytes, "%lu < %lu", used, bytes);
  }

  uint64_t limit() const { return limit_bytes_.load(std::memory_order_relaxed); }
  /// The bytes in use may exceed the new limit. The budget's owner sees to it that they shrink, and
  /// that the attention mark fits (Engine::on_budget_change()).
  void set_limit(uint64_t bytes) { limit_bytes_.store(bytes, std::memory_order_relaxed); }
  uint64_t used() const { return used_bytes_.load(std::memory_order_relaxed); }
  uint64_t free() const { return above(limit(), used()); }
  /// By how many bytes the limit is exceeded.
  uint64_t excess() const { return above(used(), limit()); }
  /// How many bytes must be released before this many can be reserved. It is at least one: another
  /// thread may take what is free.
  uint64_t lacking(uint64_t bytes) const {
    return excess() + std::max<uint64_t>(above(bytes, free()), 1);
  }
  uint64_t attention() const { return attention_bytes_.load(std::memory_order_relaxed); }
  bool needs_attention() const { return used() > attention(); }
  /// Whether this many more bytes would call for attention.
  bool is_scarce(uint64_t bytes) const {
    const uint64_t attention_bytes = attention();
    return bytes > attention_bytes || used() > attention_bytes - bytes;
  }
  void set_attention(uint64_t bytes) { attention_bytes_.store(bytes, std::memory_order_relaxed); }

 private:
  /// By how many bytes the first figure exceeds the other.
  static uint64_t above(uint64_t bytes, uint64_t other) {
    return bytes > other ? bytes - other : 0;
  }

  std::atomic<uint64_t> limit_bytes_;
  std::atomic<uint64_t> used_bytes_{0};
  std::atomic<uint64_t> attention_bytes_;
  Counter& peak_bytes_;
};

inline constexpr uint64_t kHeadroomShare = 32;
inline constexpr uint64_t kHeadroomBytesMax = kGiB;

constexpr uint64_t headroom_of(uint64_t budget_bytes) {
  return std::min(budget_bytes / kHeadroomShare, kHeadroomBytesMax);
}

/// The budget that leaves `bytes` besides its headroom.
constexpr uint64_t budget_with_headroom(uint64_t bytes) {
  return bytes + std::min(bytes / (kHeadroomShare - 1), kHeadroomBytesMax);
}

}  // namespace tencache
