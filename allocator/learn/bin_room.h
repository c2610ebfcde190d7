// SPDX-License-Identifier: Apache-2.0
//
// BinRoom: the room that a budget leaves in each bin of a timeline, while the tensors of some gaps
// are away. Fetches take the room, in the sequence in which they are scheduled: a tensor whose
// fetch is scheduled comes back early, and any other counts as away to the end of its gap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "learn/bin_timeline.h"
#include "learn/trace.h"

namespace tencache {

class BinRoom {
 public:
  /// The timeline is the trace's and outlives this.
  BinRoom(const Trace& trace, uint64_t budget_bytes, const BinTimeline& timeline,
          const std::vector<Gap>& chosen)
      : budget_bytes_(budget_bytes),
        timeline_(timeline),
        used_(timeline.maxima(trace.bytes_by_tick())),
        away_(timeline.count(), 0) {
    for (const Gap& gap : chosen) {
      timeline.for_each(timeline.inside(gap), [&](uint32_t bin) {
        used_[bin] -= gap.bytes;
        away_[bin] += gap.bytes;
      });
    }
  }

  /// The bin in which most is away at first.
  uint32_t emptiest() const {
    return static_cast<uint32_t>(std::ranges::max_element(away_) - away_.begin());
  }

  /// Takes room until the end of a gap, from the earliest of its last `bins_max` bins on that
  /// allows it. Returns the op at which the fetch may then start. `idle` are the bins of the gap.
  Tick fetch_at(const Gap& gap, const BinTimeline::Range& idle, uint32_t bins_max) {
    Tick fetch_at = gap.before;
    uint32_t bin = (idle.first + idle.count) % timeline_.count();
    for (uint32_t walked = 0; walked < bins_max; ++walked) {
      bin = timeline_.previous(bin);
      if (used_[bin] + gap.bytes > budget_bytes_) break;
      used_[bin] += gap.bytes;
      fetch_at = timeline_.first_tick(bin);
    }
    return fetch_at;
  }

 private:
  const uint64_t budget_bytes_;
  const BinTimeline& timeline_;
  std::vector<uint64_t> used_;  // by bin
  std::vector<uint64_t> away_;
};

}  // namespace tencache
