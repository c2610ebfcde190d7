// SPDX-License-Identifier: Apache-2.0
#include "learn/early_fetches.h"

#include <algorithm>
#include <tuple>

#include "learn/bin_room.h"

namespace tencache {

Plan fetch_when_room(const Trace& trace, uint64_t budget_bytes, const BinTimeline& timeline,
                     std::vector<Gap> chosen) {
  BinRoom room(trace, budget_bytes, timeline, chosen);
  const Tick count = trace.tick_count();
  const Tick begin = timeline.first_tick(room.emptiest());
  // Among equal deadlines, the tensor that left last comes first: it may have the least time.
  const auto order = [&](const Gap& gap) {
    const Tick until_deadline = gap.comes_back() ? trace.ticks_from(begin + 1, gap.before) : count;
    return std::tuple(until_deadline, count - gap.after, gap.tensor);
  };
  std::ranges::sort(chosen, {}, order);
  Plan plan;
  plan.moves.reserve(chosen.size());
  for (const Gap& gap : chosen) {
    const BinTimeline::Range idle = timeline.inside(gap);
    const Tick fetch_at = gap.comes_back() ? room.fetch_at(gap, idle, idle.count) : kNoTick;
    plan.moves.push_back({gap.tensor, gap.after, fetch_at, gap.before});
  }
  // Evictions after one op go in the opposite order: first the tensor whose deadline, counted from
  // the moment at which most is away, is the last.
  std::reverse(plan.moves.begin(), plan.moves.end());
  return plan;
}

}  // namespace tencache
