// SPDX-License-Identifier: Apache-2.0
#include "learn/link_time.h"

#include <algorithm>

namespace tencache {
namespace {

// The next bin of a walk through a span, when `left` bins are still to go.
uint32_t next_bin(const BinTimeline::Span& span, uint32_t left, BinTimeline::From from) {
  return from == BinTimeline::From::kStart ? span.end - left : span.begin + left - 1;
}

// How many bins of the block of `bin` such a walk has yet to see, `bin` itself included.
uint32_t rest_of_block(uint32_t bin, BinTimeline::From from) {
  return from == BinTimeline::From::kStart ? kBlockBins - bin % kBlockBins : bin % kBlockBins + 1;
}

}  // namespace

LinkTime::LinkTime(const BinTimeline& timeline)
    : timeline_(&timeline), block_ns_(timeline.block_count(), 0) {
  free_ns_.reserve(timeline.count());
  for (uint32_t bin = 0; bin < timeline.count(); ++bin) {
    free_ns_.push_back(timeline.duration_ns(bin));
    block_ns_[bin / kBlockBins] += free_ns_.back();
  }
}

std::optional<uint32_t> LinkTime::bins(const BinTimeline::Range& range, uint64_t ns,
                                       From from) const {
  uint32_t walked = 0;
  for (const BinTimeline::Span& span : timeline_->spans(range, from)) {
    for (uint32_t left = span.end - span.begin; left > 0;) {
      const uint32_t bin = next_bin(span, left, from);
      // A whole block that does not have enough is passed in one step.
      const bool is_block = rest_of_block(bin, from) == kBlockBins && left >= kBlockBins &&
                            block_ns_[bin / kBlockBins] < ns;
      const uint32_t count = is_block ? kBlockBins : 1;
      const uint64_t free_ns = is_block ? block_ns_[bin / kBlockBins] : free_ns_[bin];
      walked += count;
      if (free_ns >= ns) return walked;
      ns -= free_ns;
      left -= count;
    }
  }
  return std::nullopt;
}

void LinkTime::take(const BinTimeline::Range& range, uint64_t ns, From from) {
  for (const BinTimeline::Span& span : timeline_->spans(range, from)) {
    for (uint32_t left = span.end - span.begin; left > 0 && ns > 0;) {
      const uint32_t bin = next_bin(span, left, from);
      uint64_t& block_ns = block_ns_[bin / kBlockBins];
      if (block_ns == 0) {
        left -= std::min(left, rest_of_block(bin, from));
        continue;
      }
      const uint64_t taken = std::min(ns, free_ns_[bin]);
      free_ns_[bin] -= taken;
      block_ns -= taken;
      ns -= taken;
      --left;
    }
  }
}

}  // namespace tencache
