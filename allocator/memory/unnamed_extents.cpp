// SPDX-License-Identifier: Apache-2.0
#include "memory/unnamed_extents.h"

#include <algorithm>
#include <vector>

namespace tencache {
namespace {

struct Unnamed {
  uint64_t id = 0;  // ascending in the order of allocation
  ListedExtent listed;
};

std::vector<Unnamed> oldest_first(std::span<const ListedExtent> extents) {
  std::vector<Unnamed> unnamed;
  for (const ListedExtent& listed : extents) {
    if (!listed.extent->is_kept_unseen()) continue;
    unnamed.push_back({listed.extent->id.load(std::memory_order_relaxed), listed});
  }
  std::ranges::sort(unnamed, {}, &Unnamed::id);
  return unnamed;
}

}  // namespace

uint64_t count_oldest_as_seen(std::span<const ListedExtent> extents, uint64_t bytes,
                              uint64_t more_bytes) {
  const std::vector<Unnamed> unnamed = oldest_first(extents);
  uint64_t counted_bytes = 0;
  for (const Unnamed& oldest : unnamed) {
    const bool is_newest = &oldest == &unnamed.back();
    if (counted_bytes >= bytes && (is_newest || counted_bytes >= bytes + more_bytes)) break;
    oldest.listed.extent->set_flags(kFlagSeen);
    counted_bytes += oldest.listed.bytes;
  }
  return counted_bytes;
}

}  // namespace tencache
