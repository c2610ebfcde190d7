// SPDX-License-Identifier: Apache-2.0
#include "learn/link_time.h"

#include <algorithm>

namespace tencache {

LinkTime::LinkTime(const BinTimeline& timeline)
    : timeline_(&timeline), block_ns_(timeline.block_count(), 0) {
  free_ns_.reserve(timeline.count());
  for (uint32_t bin = 0; bin < timeline.count(); ++bin) {
    free_ns_.push_back(timeline.duration_ns(bin));
    block_ns_[bin / kBlockBins] += free_ns_.back();
  }
}

std::optional<uint32_t> LinkTime::bins_forward(const BinTimeline::Range& range, uint64_t ns) const {
  uint32_t walked = 0;
  for (const BinTimeline::Span& span : timeline_->spans(range)) {
    for (uint32_t bin = span.begin; bin < span.end;) {
      const bool is_block = bin % kBlockBins == 0 && span.end - bin >= kBlockBins;
      if (is_block && block_ns_[bin / kBlockBins] < ns) {
        ns -= block_ns_[bin / kBlockBins];
        bin += kBlockBins;
        walked += kBlockBins;
        continue;
      }
      ++walked;
      if (free_ns_[bin] >= ns) return walked;
      ns -= free_ns_[bin++];
    }
  }
  return std::nullopt;
}

std::optional<uint32_t> LinkTime::bins_backward(const BinTimeline::Range& range,
                                                uint64_t ns) const {
  uint32_t walked = 0;
  for (const BinTimeline::Span& span : timeline_->spans_backward(range)) {
    for (uint32_t end = span.end; end > span.begin;) {
      const bool is_block = end % kBlockBins == 0 && end - span.begin >= kBlockBins;
      if (is_block && block_ns_[end / kBlockBins - 1] < ns) {
        ns -= block_ns_[end / kBlockBins - 1];
        end -= kBlockBins;
        walked += kBlockBins;
        continue;
      }
      ++walked;
      if (free_ns_[--end] >= ns) return walked;
      ns -= free_ns_[end];
    }
  }
  return std::nullopt;
}

void LinkTime::take_forward(const BinTimeline::Range& range, uint64_t ns) {
  for (const BinTimeline::Span& span : timeline_->spans(range)) {
    for (uint32_t bin = span.begin; bin < span.end && ns > 0;) {
      if (block_ns_[bin / kBlockBins] == 0) {
        bin = (bin / kBlockBins + 1) * kBlockBins;
      } else {
        ns -= take(bin++, ns);
      }
    }
  }
}

void LinkTime::take_backward(const BinTimeline::Range& range, uint64_t ns) {
  for (const BinTimeline::Span& span : timeline_->spans_backward(range)) {
    for (uint32_t end = span.end; end > span.begin && ns > 0;) {
      if (block_ns_[(end - 1) / kBlockBins] == 0) {
        end = (end - 1) / kBlockBins * kBlockBins;
      } else {
        ns -= take(--end, ns);
      }
    }
  }
}

// Returns how much the bin gave.
uint64_t LinkTime::take(uint32_t bin, uint64_t ns) {
  const uint64_t taken = std::min(ns, free_ns_[bin]);
  free_ns_[bin] -= taken;
  block_ns_[bin / kBlockBins] -= taken;
  return taken;
}

}  // namespace tencache
