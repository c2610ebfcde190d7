// SPDX-License-Identifier: Apache-2.0
#include "learn/link_time.h"

#include <algorithm>

namespace tencache {

LinkTime::LinkTime(const SlotTimeline& timeline)
    : timeline_(&timeline), block_ns_(timeline.block_count(), 0) {
  free_ns_.reserve(timeline.count());
  for (uint32_t slot = 0; slot < timeline.count(); ++slot) {
    free_ns_.push_back(timeline.duration_ns(slot));
    block_ns_[slot / kBlockSlots] += free_ns_.back();
  }
}

std::optional<uint32_t> LinkTime::slots_forward(const SlotTimeline::Range& range,
                                                uint64_t ns) const {
  uint32_t walked = 0;
  for (const SlotTimeline::Span& span : timeline_->spans(range)) {
    for (uint32_t slot = span.begin; slot < span.end;) {
      const bool is_block = slot % kBlockSlots == 0 && span.end - slot >= kBlockSlots;
      if (is_block && block_ns_[slot / kBlockSlots] < ns) {
        ns -= block_ns_[slot / kBlockSlots];
        slot += kBlockSlots;
        walked += kBlockSlots;
        continue;
      }
      ++walked;
      if (free_ns_[slot] >= ns) return walked;
      ns -= free_ns_[slot++];
    }
  }
  return std::nullopt;
}

std::optional<uint32_t> LinkTime::slots_backward(const SlotTimeline::Range& range,
                                                 uint64_t ns) const {
  uint32_t walked = 0;
  for (const SlotTimeline::Span& span : timeline_->spans_backward(range)) {
    for (uint32_t end = span.end; end > span.begin;) {
      const bool is_block = end % kBlockSlots == 0 && end - span.begin >= kBlockSlots;
      if (is_block && block_ns_[end / kBlockSlots - 1] < ns) {
        ns -= block_ns_[end / kBlockSlots - 1];
        end -= kBlockSlots;
        walked += kBlockSlots;
        continue;
      }
      ++walked;
      if (free_ns_[--end] >= ns) return walked;
      ns -= free_ns_[end];
    }
  }
  return std::nullopt;
}

void LinkTime::take_forward(const SlotTimeline::Range& range, uint64_t ns) {
  for (const SlotTimeline::Span& span : timeline_->spans(range)) {
    for (uint32_t slot = span.begin; slot < span.end && ns > 0; ++slot) ns -= take(slot, ns);
  }
}

void LinkTime::take_backward(const SlotTimeline::Range& range, uint64_t ns) {
  for (const SlotTimeline::Span& span : timeline_->spans_backward(range)) {
    for (uint32_t end = span.end; end > span.begin && ns > 0; --end) ns -= take(end - 1, ns);
  }
}

// How much the slot gave.
uint64_t LinkTime::take(uint32_t slot, uint64_t ns) {
  const uint64_t taken = std::min(ns, free_ns_[slot]);
  free_ns_[slot] -= taken;
  block_ns_[slot / kBlockSlots] -= taken;
  return taken;
}

}  // namespace tencache
