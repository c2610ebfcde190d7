// SPDX-License-Identifier: Apache-2.0
//
// MallocUse: counts the blocks that come from malloc. malloc keeps freed memory for later blocks,
// and no extent can use those pages. So they stay in the budget until malloc is told to give them
// back, which happens when room is needed, as with the cache of freed extents.
//
// Invariant: reserved() bytes stand in the budget. They are never less than the bytes of the blocks
// in use, except between add() and confirm() or remove(), and within trim().
//
// Threads: any; lock-free but trim(), in which malloc takes its own locks. One thread counts a
// block and then reads what is reserved; another lowers what is reserved and then reads the blocks.
// In either order, one side sees the other (sequential consistency).
#pragma once

#include <atomic>
#include <cstdint>

#include "memory/budget.h"

namespace tencache {

class MallocUse {
 public:
  explicit MallocUse(Budget& budget) : budget_(budget) {}

  /// Counts a block in. Returns how many bytes the caller must reserve in the budget and confirm(),
  /// which is mostly none.
  uint64_t add(uint64_t bytes) {
    const uint64_t used = used_.fetch_add(bytes) + bytes;
    const uint64_t reserved = reserved_.load();
    return used > reserved ? used - reserved : 0;
  }
  void confirm(uint64_t bytes) { reserved_.fetch_add(bytes); }

  /// Counts a block out: malloc has it back, or never gave it.
  void remove(uint64_t bytes) { used_.fetch_sub(bytes); }

  /// Makes malloc give free pages back to the machine when it may hold many. Returns how many bytes
  /// the budget got back.
  uint64_t trim();

  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t reserved() const { return reserved_.load(std::memory_order_relaxed); }

 private:
  Budget& budget_;
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> reserved_{0};
};

}  // namespace tencache
