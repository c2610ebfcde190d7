// SPDX-License-Identifier: Apache-2.0
#include "learn/tensor_uses.h"

#include <algorithm>

namespace tencache {

Tick TensorUses::last_use(uint32_t tensor, Tick now) const {
  const std::vector<Tick>& uses = uses_[tensor];
  const auto later = std::upper_bound(uses.begin(), uses.end(), now);
  return later == uses.begin() ? uses.back() : *(later - 1);
}

Tick TensorUses::next_use(uint32_t tensor, Tick now) const {
  const std::vector<Tick>& uses = uses_[tensor];
  const TraceTensor& life = trace_.tensors[tensor];
  const auto later = std::upper_bound(uses.begin(), uses.end(), now);
  const Tick next = later == uses.end() ? uses.front() : *later;
  // The op that names the tensor next may do so in the tensor's next life.
  return !life.is_persistent() && next == life.allocated_at ? kNoTick : next;
}

Tick TensorUses::idle_until(uint32_t tensor, Tick now) const {
  const Tick next = next_use(tensor, now);
  return next == kNoTick ? trace_.tensors[tensor].freed_at : next;
}

std::vector<std::vector<Tick>> TensorUses::ends_of_idleness() const {
  std::vector<std::vector<Tick>> ends = uses_;
  for (uint32_t tensor = 0; tensor < ends.size(); ++tensor) {
    if (trace_.tensors[tensor].is_persistent()) continue;
    std::vector<Tick>& ticks = ends[tensor];
    const Tick freed_at = trace_.tensors[tensor].freed_at;
    const auto place = std::lower_bound(ticks.begin(), ticks.end(), freed_at);
    if (place == ticks.end() || *place != freed_at) ticks.insert(place, freed_at);
  }
  return ends;
}

}  // namespace tencache
