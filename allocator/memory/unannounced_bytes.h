// SPDX-License-Identifier: Apache-2.0
//
// UnannouncedBytes: the books of pages that the program wrote to cold extents without an op. They
// are private pages on top of the slot (Note [Cold mapping] in platform/address_arena.h), so they
// take memory, and count in the budget as soon as they are known.
//
// Invariants: 1. total() is the sum of Extent::unannounced_bytes over all extents. 2. total() bytes
// stand in the budget.
//
// Threads: any; lock-free. Whoever notes the bytes of an extent, fetches it or frees it has claimed
// it before, so the pages that were counted are those of a cold extent.
#pragma once

#include <atomic>
#include <cstdint>

#include "memory/budget.h"
#include "memory/extent.h"

namespace tencache {

class UnannouncedBytes {
 public:
  explicit UnannouncedBytes(Budget& budget) : budget_(budget) {}

  /// The extent holds this many bytes now. Returns by how many the limit of the budget is exceeded
  /// for want of room for more than before.
  uint64_t note(Extent* extent, uint64_t bytes) {
    const uint64_t before = extent->unannounced_bytes.exchange(bytes);
    total_.fetch_add(bytes - before, std::memory_order_relaxed);
    if (bytes > before) return budget_.force_reserve(bytes - before);
    if (before > bytes) budget_.release(before - bytes);
    return 0;
  }
  void forget(Extent* extent) {
    if (extent->unannounced_bytes.load(std::memory_order_relaxed) > 0) note(extent, 0);
  }

  uint64_t total() const { return total_.load(std::memory_order_relaxed); }

 private:
  Budget& budget_;
  std::atomic<uint64_t> total_{0};
};

}  // namespace tencache
