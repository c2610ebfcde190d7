// SPDX-License-Identifier: Apache-2.0
#include "learn/early_fetches.h"

#include <algorithm>
#include <tuple>

namespace tencache {
namespace {

/// What is on the device in each bin, while what was placed comes back early and all else late.
class Room {
 public:
  Room(const Trace& trace, uint64_t budget_bytes, const BinTimeline& timeline,
       const std::vector<Gap>& chosen)
      : trace_(trace),
        budget_bytes_(budget_bytes),
        timeline_(timeline),
        used_(timeline.maxima(trace.bytes_by_tick())),
        away_(timeline.count(), 0) {
    for (const Gap& gap : chosen) {
      const uint64_t bytes = trace.tensors[gap.tensor].bytes;
      timeline.for_each(timeline.inside(gap), [&](uint32_t bin) {
        used_[bin] -= bytes;
        away_[bin] += bytes;
      });
    }
  }

  /// The bin in which most is away.
  uint32_t emptiest() const {
    return static_cast<uint32_t>(std::max_element(away_.begin(), away_.end()) - away_.begin());
  }

  /// Takes room until the end of the gap, from the earliest bin on that allows it.
  Tick fetch_at(const Gap& gap) {
    const uint64_t bytes = trace_.tensors[gap.tensor].bytes;
    const BinTimeline::Range idle = timeline_.inside(gap);
    Tick fetch_at = gap.before;
    uint32_t bin = (idle.first + idle.count) % timeline_.count();
    for (uint32_t walked = 0; walked < idle.count; ++walked) {
      bin = timeline_.previous(bin);
      if (used_[bin] + bytes > budget_bytes_) break;
      used_[bin] += bytes;
      fetch_at = timeline_.first_tick(bin);
    }
    return fetch_at;
  }

 private:
  const Trace& trace_;
  const uint64_t budget_bytes_;
  const BinTimeline& timeline_;
  std::vector<uint64_t> used_;  // by bin
  std::vector<uint64_t> away_;
};

}  // namespace

Plan fetch_when_room(const Trace& trace, uint64_t budget_bytes, const BinTimeline& timeline,
                     std::vector<Gap> chosen) {
  Room room(trace, budget_bytes, timeline, chosen);
  const Tick count = trace.tick_count();
  const Tick begin = timeline.first_tick(room.emptiest());
  // Among equal deadlines, the tensor that left last comes first: it may have the least time.
  const auto order = [&](const Gap& gap) {
    const Tick until_deadline = gap.comes_back() ? (gap.before + count - begin - 1) % count : count;
    return std::tuple(until_deadline, count - gap.after, gap.tensor);
  };
  std::sort(chosen.begin(), chosen.end(),
            [&](const Gap& left, const Gap& right) { return order(left) < order(right); });
  Plan plan;
  plan.moves.reserve(chosen.size());
  for (const Gap& gap : chosen) {
    const Tick fetch_at = gap.comes_back() ? room.fetch_at(gap) : kNoTick;
    plan.moves.push_back({gap.tensor, gap.after, fetch_at, gap.before});
  }
  // Among the evictions after one op, that of the tensor that is needed last goes first.
  std::reverse(plan.moves.begin(), plan.moves.end());
  return plan;
}

}  // namespace tencache
