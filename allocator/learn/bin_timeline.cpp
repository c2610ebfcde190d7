// SPDX-License-Identifier: Apache-2.0
#include "learn/bin_timeline.h"

#include <algorithm>

namespace tencache {

BinTimeline::BinTimeline(const Trace& trace, std::span<const uint64_t> stall_ns)
    : ticks_per_bin_((trace.tick_count() + kBinsMax - 1) / kBinsMax),
      tick_count_(trace.tick_count()) {
  const uint32_t bins = (tick_count_ + ticks_per_bin_ - 1) / ticks_per_bin_;
  duration_ns_.assign(bins, 0);
  for (Tick tick = 0; tick < tick_count_; ++tick) {
    duration_ns_[bin_of(tick)] +=
        trace.ops[tick].compute_ns + (stall_ns.empty() ? 0 : stall_ns[tick]);
  }
}

std::vector<uint64_t> BinTimeline::maxima(const std::vector<uint64_t>& by_tick) const {
  std::vector<uint64_t> most(count(), 0);
  for (Tick tick = 0; tick < tick_count_; ++tick) {
    most[bin_of(tick)] = std::max(most[bin_of(tick)], by_tick[tick]);
  }
  return most;
}

BinTimeline::Range BinTimeline::inside(const Gap& gap) const {
  // The gap covers the ticks after + 1 .. until, on the unrolled axis.
  const uint64_t first_tick = uint64_t{gap.after} + 1;
  const uint64_t end_tick = uint64_t{gap.until} + 1 + (gap.wraps() ? tick_count_ : 0);
  // The last bin of a repetition may hold fewer ticks than the others.
  const auto unrolled_bin = [&](uint64_t tick) {
    return tick / tick_count_ * count() + bin_of(static_cast<Tick>(tick % tick_count_));
  };
  const auto begins_bin = [&](uint64_t tick) { return tick % tick_count_ % ticks_per_bin_ == 0; };
  const uint64_t first = unrolled_bin(first_tick) + (begins_bin(first_tick) ? 0 : 1);
  const uint64_t end = unrolled_bin(end_tick);
  if (end <= first) return {};
  return {static_cast<uint32_t>(first % count()), static_cast<uint32_t>(end - first)};
}

}  // namespace tencache
