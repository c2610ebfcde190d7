// SPDX-License-Identifier: Apache-2.0
#include "learn/excess_bytes.h"

#include <algorithm>

namespace tencache {

ExcessBytes::ExcessBytes(const SlotTimeline& timeline, const Trace& trace, uint64_t budget_bytes)
    : timeline_(timeline), blocks_(timeline.block_count()) {
  for (const uint64_t most : timeline.maxima(trace.bytes_by_tick())) {
    const uint32_t slot = static_cast<uint32_t>(bytes_.size());
    time_.push_back(static_cast<double>(timeline.duration_ns(slot) + 1));
    bytes_.push_back(static_cast<double>(most - std::min(most, budget_bytes)));
    slots_ += bytes_.back() > 0 ? 1 : 0;
  }
  for (uint32_t block = 0; block < blocks_.size(); ++block) sum_up(block);
}

double ExcessBytes::benefit(const SlotTimeline::Range& away, uint64_t tensor_bytes) const {
  const double bytes = static_cast<double>(tensor_bytes);
  double sum = 0;
  for (const SlotTimeline::Span& span : timeline_.spans(away)) {
    for (uint32_t slot = span.begin; slot < span.end;) {
      const uint32_t end = std::min(span.end, (slot / kBlockSlots + 1) * kBlockSlots);
      const Block& block = blocks_[slot / kBlockSlots];
      const bool is_whole = end - slot == kBlockSlots;
      if (is_whole && bytes <= block.least) {
        sum += bytes * block.time;
      } else if (is_whole && bytes >= block.most) {
        sum += block.product;
      } else {
        sum += benefit_slot_by_slot(slot, end, bytes);
      }
      slot = end;
    }
  }
  return sum;
}

double ExcessBytes::benefit_slot_by_slot(uint32_t begin, uint32_t end, double bytes) const {
  double sum = 0;
  for (uint32_t slot = begin; slot < end; ++slot)
    sum += std::min(bytes, bytes_[slot]) * time_[slot];
  return sum;
}

void ExcessBytes::take(const SlotTimeline::Range& away, uint64_t tensor_bytes) {
  const double bytes = static_cast<double>(tensor_bytes);
  for (const SlotTimeline::Span& span : timeline_.spans(away)) {
    for (uint32_t slot = span.begin; slot < span.end; ++slot) {
      const double taken = std::min(bytes, bytes_[slot]);
      slots_ -= taken > 0 && taken == bytes_[slot] ? 1 : 0;
      bytes_[slot] -= taken;
    }
    for (uint32_t block = span.begin / kBlockSlots; block * kBlockSlots < span.end; ++block) {
      sum_up(block);
    }
  }
}

void ExcessBytes::sum_up(uint32_t block) {
  const uint32_t begin = block * kBlockSlots;
  const uint32_t end = std::min(begin + kBlockSlots, timeline_.count());
  Block sums{bytes_[begin], bytes_[begin], 0, 0};
  for (uint32_t slot = begin; slot < end; ++slot) {
    sums.least = std::min(sums.least, bytes_[slot]);
    sums.most = std::max(sums.most, bytes_[slot]);
    sums.time += time_[slot];
    sums.product += bytes_[slot] * time_[slot];
  }
  blocks_[block] = sums;
}

}  // namespace tencache
