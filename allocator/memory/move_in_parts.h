// SPDX-License-Identifier: Apache-2.0
//
// move_in_parts(): how pages of an extent move when they may lie in several of the kernel's
// mappings, of which it moves one at a time. They begin at granules (memory/cpu_heap.h, invariant
// 3), so it goes granule by granule then, and else in one go.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/status.h"
#include "platform/address_arena.h"

namespace tencache {

/// Calls move(offset, part_bytes), which returns a Status, for one part after the other until one
/// fails. `moved_bytes` is then what was moved before.
template <typename Move>
Status move_in_parts(uint64_t bytes, uint32_t mapping_count, uint64_t* moved_bytes, Move move) {
  const uint64_t part_bytes_max = mapping_count > 1 ? kGranuleBytes : bytes;
  for (*moved_bytes = 0; *moved_bytes < bytes;) {
    const uint64_t part_bytes = std::min(part_bytes_max, bytes - *moved_bytes);
    TENCACHE_RETURN_IF_ERROR(move(*moved_bytes, part_bytes));
    *moved_bytes += part_bytes;
  }
  return Status::ok();
}

}  // namespace tencache
