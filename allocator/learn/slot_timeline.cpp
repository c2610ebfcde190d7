// SPDX-License-Identifier: Apache-2.0
#include "learn/slot_timeline.h"

#include <algorithm>

namespace tencache {

SlotTimeline::SlotTimeline(const Trace& trace)
    : ticks_per_slot_((trace.tick_count() + kSlotsMax - 1) / kSlotsMax),
      tick_count_(trace.tick_count()) {
  const uint32_t slots = (tick_count_ + ticks_per_slot_ - 1) / ticks_per_slot_;
  duration_ns_.assign(slots, 0);
  for (Tick tick = 0; tick < tick_count_; ++tick) {
    duration_ns_[slot_of(tick)] += trace.ops[tick].compute_ns;
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

LinkTime::LinkTime(const SlotTimeline& timeline) : timeline_(&timeline) {
  free_ns_.reserve(timeline.count());
  for (uint32_t slot = 0; slot < timeline.count(); ++slot) {
    free_ns_.push_back(timeline.duration_ns(slot));
  }
}

std::optional<uint32_t> LinkTime::slots_forward(uint32_t first, uint32_t count, uint64_t ns) const {
  uint32_t slot = first;
  for (uint32_t walked = 1; walked <= count; ++walked, slot = timeline_->next(slot)) {
    if (free_ns_[slot] >= ns) return walked;
    ns -= free_ns_[slot];
  }
  return std::nullopt;
}

std::optional<uint32_t> LinkTime::slots_backward(uint32_t first, uint32_t count,
                                                 uint64_t ns) const {
  if (count == 0) return std::nullopt;
  uint32_t slot = (first + count - 1) % timeline_->count();
  for (uint32_t walked = 1; walked <= count; ++walked, slot = timeline_->previous(slot)) {
    if (free_ns_[slot] >= ns) return walked;
    ns -= free_ns_[slot];
  }
  return std::nullopt;
}

void LinkTime::take_forward(uint32_t first, uint32_t count, uint64_t ns) {
  uint32_t slot = first;
  for (uint32_t walked = 0; walked < count && ns > 0; ++walked, slot = timeline_->next(slot)) {
    const uint64_t taken = std::min(ns, free_ns_[slot]);
    free_ns_[slot] -= taken;
    ns -= taken;
  }
}

void LinkTime::take_backward(uint32_t first, uint32_t count, uint64_t ns) {
  if (count == 0) return;
  uint32_t slot = (first + count - 1) % timeline_->count();
  for (uint32_t walked = 0; walked < count && ns > 0; ++walked, slot = timeline_->previous(slot)) {
    const uint64_t taken = std::min(ns, free_ns_[slot]);
    free_ns_[slot] -= taken;
    ns -= taken;
  }
}

}  // namespace tencache
