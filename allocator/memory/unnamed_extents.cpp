// SPDX-License-Identifier: Apache-2.0
#include "memory/unnamed_extents.h"

#include <algorithm>
#include <functional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tencache {
namespace {

struct Unnamed {
  bool is_newest = false;  // of those that its thread has allocated
  uint64_t id = 0;         // ascending in the order of allocation
  ListedExtent listed;
};

/// Returns those that no op has named: the oldest come first, and after all others the newest of
/// each thread.
std::vector<Unnamed> in_order(std::span<const ListedExtent> extents) {
  std::vector<Unnamed> unnamed;
  for (const ListedExtent& listed : extents) {
    if (!listed.extent->is_kept_unseen()) continue;
    unnamed.push_back({false, listed.extent->id.load(std::memory_order_relaxed), listed});
  }
  std::ranges::sort(unnamed, std::greater<>(), &Unnamed::id);
  std::unordered_set<uint64_t> threads;
  for (Unnamed& one : unnamed) {
    const uint64_t thread = one.listed.extent->allocated_by.load(std::memory_order_relaxed);
    one.is_newest = threads.insert(thread).second;
  }
  std::ranges::sort(unnamed, {},
                    [](const Unnamed& one) { return std::pair(one.is_newest, one.id); });
  return unnamed;
}

}  // namespace

uint64_t count_oldest_as_seen(std::span<const ListedExtent> extents, uint64_t bytes,
                              uint64_t more_bytes) {
  uint64_t counted_bytes = 0;
  for (const Unnamed& oldest : in_order(extents)) {
    if (counted_bytes >= bytes && (oldest.is_newest || counted_bytes >= bytes + more_bytes)) break;
    oldest.listed.extent->set_flags(kFlagSeen);
    counted_bytes += oldest.listed.bytes;
  }
  return counted_bytes;
}

}  // namespace tencache
