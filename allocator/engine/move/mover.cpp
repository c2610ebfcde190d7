// SPDX-License-Identifier: Apache-2.0
#include "engine/move/mover.h"

#include <algorithm>
#include <vector>

namespace tencache {

// Extents that are presumed clean make room without a write, so they go first. The room of a part
// appears when all of it has left, so extents that need a write share no part with those that need
// none, and a part ends before it would be larger than bytes_at_once().
void Mover::evict_requested(EvictionSource& source) {
  std::vector<Extent*> part;
  uint64_t part_bytes = 0;
  const auto evict_part = [&] {
    if (part.empty()) return;
    source.on_evicted(evict(part));
    part.clear();
    part_bytes = 0;
  };
  for (auto requests = source.take(0); !requests.empty(); requests = source.take(0)) {
    const auto first_to_write = std::stable_partition(
        requests.begin(), requests.end(),
        [](const MoveRequest& request) { return request.extent->is_presumed_clean(); });
    for (auto request = requests.begin(); request != requests.end(); ++request) {
      if (request == first_to_write || part_bytes + request->bytes > bytes_at_once()) evict_part();
      // The request is looked at after the write of the part before it: its extent may have been
      // requested back meanwhile.
      if (!request->is_current() || request->is_outdated()) continue;
      part.push_back(request->extent);
      part_bytes += request->bytes;
    }
    evict_part();
  }
}

}  // namespace tencache
