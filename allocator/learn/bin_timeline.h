// SPDX-License-Identifier: Apache-2.0
//
// BinTimeline: the time of a period, cut into at most kBinsMax bins of whole ticks. Bins are
// cyclic: after the last comes the first. A tick is seen only through its bin, so where a bin holds
// several ticks everything is rounded to the safe side. LinkTime and ExcessBytes hold figures of
// each bin. Both look at kBlockBins bins at once where they can, because the planner asks about
// long ranges far more often than it changes anything.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "learn/trace.h"

namespace tencache {

inline constexpr uint32_t kBinsMax = 2048;
inline constexpr uint32_t kBlockBins = 32;

class BinTimeline {
 public:
  /// An op's time is its computing time plus its entry in `stall_ns`, the wait before it. With an
  /// empty `stall_ns` no op waits.
  explicit BinTimeline(const Trace& trace, std::span<const uint64_t> stall_ns = {});

  uint32_t count() const { return static_cast<uint32_t>(duration_ns_.size()); }
  uint32_t block_count() const { return (count() + kBlockBins - 1) / kBlockBins; }
  uint32_t bin_of(Tick tick) const { return tick / ticks_per_bin_; }
  Tick first_tick(uint32_t bin) const { return bin * ticks_per_bin_; }
  uint64_t duration_ns(uint32_t bin) const { return duration_ns_[bin]; }
  uint32_t previous(uint32_t bin) const { return bin == 0 ? count() - 1 : bin - 1; }

  /// The largest entry of each bin.
  std::vector<uint64_t> maxima(const std::vector<uint64_t>& by_tick) const;

  /// Bins, as the first of them and their number.
  struct Range {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  /// The bins that lie wholly within a gap.
  Range inside(const Gap& gap) const;
  /// Calls visit(bin) for each bin of a range, in order of time.
  template <typename Visit>
  void for_each(const Range& range, Visit visit) const {
    for (const Span& span : spans(range)) {
      for (uint32_t bin = span.begin; bin < span.end; ++bin) visit(bin);
    }
  }

  /// Consecutive bins.
  struct Span {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  /// Where a walk through a range begins.
  enum class From : uint8_t { kStart, kEnd };
  /// The parts of a range in the order of a walk. The part after the end of the period is often
  /// empty.
  std::array<Span, 2> spans(const Range& range, From from = From::kStart) const {
    const uint32_t first_count = std::min(range.count, count() - range.first);
    const Span first{range.first, range.first + first_count};
    const Span rest{0, range.count - first_count};
    return from == From::kStart ? std::array{first, rest} : std::array{rest, first};
  }

 private:
  uint32_t ticks_per_bin_ = 1;
  Tick tick_count_ = 0;
  std::vector<uint64_t> duration_ns_;
};

}  // namespace tencache
