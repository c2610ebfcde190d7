// SPDX-License-Identifier: Apache-2.0
#include "learn/excess_bytes.h"

#include <algorithm>

namespace tencache {

ExcessBytes::ExcessBytes(const BinTimeline& timeline, const Trace& trace, uint64_t budget_bytes)
    : timeline_(timeline), blocks_(timeline.block_count()) {
  for (const uint64_t most : timeline.maxima(trace.bytes_by_tick())) {
    const uint32_t bin = static_cast<uint32_t>(bytes_.size());
    time_.push_back(static_cast<double>(timeline.duration_ns(bin) + 1));
    bytes_.push_back(static_cast<double>(most - std::min(most, budget_bytes)));
    bins_ += bytes_.back() > 0 ? 1 : 0;
  }
  for (uint32_t block = 0; block < blocks_.size(); ++block) sum_up(block);
}

double ExcessBytes::benefit(const BinTimeline::Range& away, uint64_t tensor_bytes) const {
  const double bytes = static_cast<double>(tensor_bytes);
  double sum = 0;
  for (const BinTimeline::Span& span : timeline_.spans(away)) {
    for (uint32_t bin = span.begin; bin < span.end;) {
      const uint32_t end = std::min(span.end, (bin / kBlockBins + 1) * kBlockBins);
      const Block& block = blocks_[bin / kBlockBins];
      const bool is_whole = end - bin == kBlockBins;
      if (is_whole && bytes <= block.least) {
        sum += bytes * block.time;
      } else if (is_whole && bytes >= block.most) {
        sum += block.product;
      } else {
        sum += benefit_bin_by_bin(bin, end, bytes);
      }
      bin = end;
    }
  }
  return sum;
}

double ExcessBytes::benefit_bin_by_bin(uint32_t begin, uint32_t end, double bytes) const {
  double sum = 0;
  for (uint32_t bin = begin; bin < end; ++bin) sum += std::min(bytes, bytes_[bin]) * time_[bin];
  return sum;
}

void ExcessBytes::take(const BinTimeline::Range& away, uint64_t tensor_bytes) {
  const double bytes = static_cast<double>(tensor_bytes);
  for (const BinTimeline::Span& span : timeline_.spans(away)) {
    for (uint32_t bin = span.begin; bin < span.end; ++bin) {
      const double taken = std::min(bytes, bytes_[bin]);
      bins_ -= taken > 0 && taken == bytes_[bin] ? 1 : 0;
      bytes_[bin] -= taken;
    }
    for (uint32_t block = span.begin / kBlockBins; block * kBlockBins < span.end; ++block) {
      sum_up(block);
    }
  }
}

void ExcessBytes::sum_up(uint32_t block) {
  const uint32_t begin = block * kBlockBins;
  const uint32_t end = std::min(begin + kBlockBins, timeline_.count());
  Block sums{bytes_[begin], bytes_[begin], 0, 0};
  for (uint32_t bin = begin; bin < end; ++bin) {
    sums.least = std::min(sums.least, bytes_[bin]);
    sums.most = std::max(sums.most, bytes_[bin]);
    sums.time += time_[bin];
    sums.product += bytes_[bin] * time_[bin];
  }
  blocks_[block] = sums;
}

}  // namespace tencache
