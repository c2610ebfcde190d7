// SPDX-License-Identifier: Apache-2.0
#include "learn/slot_timeline.h"

#include <algorithm>

namespace tencache {

SlotTimeline::SlotTimeline(const Trace& trace, std::span<const uint64_t> stall_ns)
    : ticks_per_slot_((trace.tick_count() + kSlotsMax - 1) / kSlotsMax),
      tick_count_(trace.tick_count()) {
  const uint32_t slots = (tick_count_ + ticks_per_slot_ - 1) / ticks_per_slot_;
  duration_ns_.assign(slots, 0);
  for (Tick tick = 0; tick < tick_count_; ++tick) {
    duration_ns_[slot_of(tick)] +=
        trace.ops[tick].compute_ns + (stall_ns.empty() ? 0 : stall_ns[tick]);
  }
}

std::vector<uint64_t> SlotTimeline::maxima(const std::vector<uint64_t>& by_tick) const {
  std::vector<uint64_t> most(count(), 0);
  for (Tick tick = 0; tick < tick_count_; ++tick) {
    most[slot_of(tick)] = std::max(most[slot_of(tick)], by_tick[tick]);
  }
  return most;
}

SlotTimeline::Range SlotTimeline::inside(const IdlePeriod& period) const {
  // The ticks after + 1 .. until, on the unrolled axis.
  const uint64_t first_tick = uint64_t{period.after} + 1;
  const uint64_t end_tick = uint64_t{period.until} + 1 + (period.wraps() ? tick_count_ : 0);
  // The last slot of a repetition may hold fewer ticks than the others.
  const auto unrolled_slot = [&](uint64_t tick) {
    return tick / tick_count_ * count() + slot_of(static_cast<Tick>(tick % tick_count_));
  };
  const auto begins_slot = [&](uint64_t tick) { return tick % tick_count_ % ticks_per_slot_ == 0; };
  const uint64_t first = unrolled_slot(first_tick) + (begins_slot(first_tick) ? 0 : 1);
  const uint64_t end = unrolled_slot(end_tick);
  if (end <= first) return {};
  return {static_cast<uint32_t>(first % count()), static_cast<uint32_t>(end - first)};
}

}  // namespace tencache
