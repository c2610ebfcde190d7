// SPDX-License-Identifier: Apache-2.0
//
// MallocUse: the books of the blocks that come from malloc. malloc keeps what is freed for blocks
// to come, and no extent can use those pages, so they stay in the budget until malloc is told to
// give them back: like the cache of freed extents, which goes when room is needed.
//
// Invariant: reserved() bytes stand in the budget, and they are never less than the bytes of the
// blocks in use, except within allocate() and trim().
//
// Threads: any; lock-free. In both orders of "count the block, look at what is reserved" against
// "lower what is reserved, look at the blocks" one side sees the other (sequential consistency).
#pragma once

#include <atomic>
#include <cstdint>

#include "memory/budget.h"

namespace tencache {

class MallocUse {
 public:
  explicit MallocUse(Budget& budget) : budget_(budget) {}

  /// Counts a block in; returns how many bytes the caller must reserve in the budget and confirm(),
  /// mostly none.
  uint64_t add(uint64_t bytes) {
    const uint64_t used = used_.fetch_add(bytes) + bytes;
    const uint64_t reserved = reserved_.load();
    return used > reserved ? used - reserved : 0;
  }
  void confirm(uint64_t bytes) { reserved_.fetch_add(bytes); }

  /// Counts a block out; malloc has it back, or never gave it.
  void remove(uint64_t bytes) { used_.fetch_sub(bytes); }

  /// Makes malloc give free pages back to the machine, when it may hold many; returns the bytes
  /// that the budget got back.
  uint64_t trim();

  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t reserved() const { return reserved_.load(std::memory_order_relaxed); }

 private:
  Budget& budget_;
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> reserved_{0};
};

}  // namespace tencache
