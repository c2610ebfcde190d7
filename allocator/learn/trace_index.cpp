// SPDX-License-Identifier: Apache-2.0
#include "learn/trace_index.h"

#include <utility>
#include <vector>

namespace tencache {

TraceIndex::TraceIndex(const Trace& trace)
    : trace_(trace),
      uses_(trace),
      next_uses_(uses_.ends_of_idleness(), trace.tick_count(), Victim::kFarthestNextUse),
      last_uses_(uses_.ends_of_idleness(), trace.tick_count(), Victim::kLeastRecentlyUsed) {
  std::vector<std::pair<Tick, uint32_t>> births;
  std::vector<std::pair<Tick, uint32_t>> deaths;
  for (uint32_t tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    const TraceTensor& life = trace.tensors[tensor];
    if (life.is_persistent()) continue;
    births.emplace_back(life.allocated_at, tensor);
    deaths.emplace_back(life.freed_at, tensor);
  }
  born_at_ = TensorsByTick(trace.tick_count(), births);
  freed_at_ = TensorsByTick(trace.tick_count(), deaths);
  std::vector<std::pair<Tick, Needed>> needed;
  for (Tick tick = 0; tick < trace.tick_count(); ++tick) {
    const auto add = [&](uint32_t tensor) {
      const uint32_t place = next_uses_.place_of(tensor, uses_.idle_until(tensor, tick));
      needed.emplace_back(tick, Needed{tensor, place});
    };
    for (const TraceAccess& access : trace.ops[tick].accesses) add(access.tensor);
    for (const uint32_t tensor : born_at_.at(tick)) add(tensor);
  }
  needed_ = ByTick<Needed>(trace.tick_count(), needed);
}

}  // namespace tencache
