// SPDX-License-Identifier: Apache-2.0
#include "engine/move/mover.h"

#include <vector>

namespace tencache {

void Mover::evict_requested(EvictionSource& source) {
  for (;;) {
    const std::vector<MoveRequest> requests = source.take(0);
    if (requests.empty()) return;
    evict_in_parts(requests, &source);
  }
}

void Mover::evict_in_parts(std::span<const MoveRequest> requests, EvictionSource* source) {
  std::vector<Extent*> part;
  uint64_t part_bytes = 0;
  for (const MoveRequest& request : requests) {
    if (request.is_current() && !request.is_outdated()) {
      part.push_back(request.extent);
      part_bytes += request.bytes;
    }
    if (part_bytes < bytes_at_once() && &request != &requests.back()) continue;
    source->on_evicted(evict(part));
    part.clear();
    part_bytes = 0;
  }
}

}  // namespace tencache
