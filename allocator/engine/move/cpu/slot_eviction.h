// SPDX-License-Identifier: Apache-2.0
//
// SlotEviction: an extent that the cpu backend evicts, from its claim until it is cold or resident
// again.
//
// Threads: the one that claimed it.
#pragma once

#include <cstdint>

#include "engine/move/move_ledger.h"
#include "memory/extent.h"

namespace tencache {

struct SlotEviction {
  Extent* extent = nullptr;
  uint64_t claimed_at = 0;
  bool needs_write = true;

  bool is_used_since() const {
    return extent->last_use_at.load(std::memory_order_relaxed) > claimed_at;
  }
  /// Call before the extent becomes cold.
  Departure departure() const { return {*extent, claimed_at, needs_write}; }
  void abandon() const { extent->abandon_eviction(); }
};

/// Where the tensor of a failed eviction stays, for MoveLedger::count_failure().
inline constexpr const char* kStaysInMemory = "in memory";

}  // namespace tencache
