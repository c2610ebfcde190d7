// SPDX-License-Identifier: Apache-2.0
#include "engine/move/mover.h"

#include <vector>

namespace tencache {

void Mover::evict_requested(std::span<const MoveRequest> requests, const OnEvicted& on_evicted) {
  std::vector<Extent*> part;
  uint64_t part_bytes = 0;
  for (const MoveRequest& request : requests) {
    if (request.is_current() && !request.is_outdated()) {
      part.push_back(request.extent);
      part_bytes += request.bytes;
    }
    if (part_bytes < bytes_at_once() && &request != &requests.back()) continue;
    on_evicted(evict(part));
    part.clear();
    part_bytes = 0;
  }
}

}  // namespace tencache
