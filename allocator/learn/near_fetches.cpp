// SPDX-License-Identifier: Apache-2.0
#include "learn/near_fetches.h"

#include <algorithm>

namespace tencache {

Plan fetch_near_use(const Trace& trace, std::vector<Gap> chosen, uint64_t ahead_bytes) {
  const Tick count = trace.tick_count();
  std::ranges::stable_sort(chosen, {}, &Gap::before);
  Plan plan;
  plan.moves.reserve(chosen.size());
  for (const Gap& gap : chosen) {
    plan.moves.push_back({gap.tensor, gap.after, kNoTick, gap.before});
  }
  const auto first_without = std::ranges::find(chosen, kNoTick, &Gap::before);
  const size_t returning = static_cast<size_t>(first_without - chosen.begin());
  // The loop goes through the fetches of two repetitions in a row. `first` is the first of those
  // that count as ahead.
  size_t first = 0;
  uint64_t bytes = 0;
  for (size_t number = 0; number < 2 * returning; ++number) {
    const Gap& gap = chosen[number % returning];
    bytes += gap.bytes;
    while (bytes > ahead_bytes && first < number &&
           chosen[(first + 1) % returning].before != gap.before) {
      bytes -= chosen[first++ % returning].bytes;
    }
    if (number < returning) continue;
    const Tick since_first = trace.ticks_from(chosen[first % returning].before, gap.before);
    const Tick ahead = number - first < returning ? since_first : count;
    const Tick length = trace.ticks_from(gap.after + 1, gap.before) + 1;
    plan.moves[number % returning].fetch_at =
        (gap.before + count - std::min(ahead, length - 1)) % count;
  }
  // Evictions after one op go in the opposite order: the tensor that is needed last in the period
  // leaves first.
  std::reverse(plan.moves.begin(), plan.moves.end());
  return plan;
}

}  // namespace tencache
