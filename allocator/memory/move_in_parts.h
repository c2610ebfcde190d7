// SPDX-License-Identifier: Apache-2.0
//
// move_in_parts(): moves pages of an extent that may lie in several kernel mappings. The kernel
// moves one mapping at a time, and mappings begin at granules (memory/cpu_heap.h, invariant 3). So
// several mappings move granule by granule, and a single one in one go.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/status.h"
#include "platform/address_arena.h"

namespace tencache {

/// Calls move(offset, part_bytes), which returns a Status, for one part after the other until one
/// fails. `moved_bytes` then tells how much was moved before.
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
