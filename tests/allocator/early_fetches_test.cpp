// SPDX-License-Identifier: Apache-2.0
//
// fetch_when_room: how early fetches start on a trace that was worked out by hand. On random traces
// each starts within its gap and fits into the budget.
#include "learn/early_fetches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/random_trace.h"

namespace tencache {
namespace {

// Four tensors of 10 bytes are made in turn and named in the opposite order, as activations are.
Trace there_and_back() {
  Trace trace;
  trace.op_names = {"op"};
  for (uint32_t tensor = 0; tensor < 4; ++tensor) {
    trace.tensors.push_back({10, tensor, 7 - tensor});
    trace.ops.push_back({0, 100, {{tensor, true}}});
  }
  for (uint32_t tensor = 4; tensor-- > 0;) trace.ops.push_back({0, 100, {{tensor, false}}});
  return trace;
}

std::map<uint32_t, Tick> starts(const Trace& trace, uint64_t budget_bytes) {
  std::map<uint32_t, Tick> result;
  const BinTimeline timeline(trace);
  for (const PlannedMove& move :
       fetch_when_room(trace, budget_bytes, timeline, gaps_of(trace)).moves) {
    result[move.tensor] = move.fetch_at;
  }
  return result;
}

TEST(EarlyFetchesTest, AsEarlyAsThereIsRoom) {
  using Starts = std::map<uint32_t, Tick>;
  // Tensor 3 is named by two ops in a row and never leaves. With 20 bytes there is room for one
  // more: tensor 2 stays where it is, tensor 1 comes when tensor 3 goes, and tensor 0 when tensor 2
  // does.
  EXPECT_EQ(starts(there_and_back(), 20), (Starts{{0, 6}, {1, 5}, {2, 3}}));
  // With 10 bytes each comes just before its op.
  EXPECT_EQ(starts(there_and_back(), 10), (Starts{{0, 7}, {1, 6}, {2, 5}}));
  // With room for all, each stays.
  EXPECT_EQ(starts(there_and_back(), 1000), (Starts{{0, 1}, {1, 2}, {2, 3}}));
}

TEST(EarlyFetchesTest, EachStartsWithinItsGapAndFits) {
  Random random;
  for (int round = 0; round < 300; ++round) {
    const Trace trace = random_trace(random, {.ops = 16, .tensors = 8});
    const std::vector<Gap> gaps = gaps_of(trace);
    const BinTimeline timeline(trace);
    const uint64_t budget_bytes = random.between(1, trace.peak_bytes());
    const Plan plan = fetch_when_room(trace, budget_bytes, timeline, gaps);
    ASSERT_EQ(plan.moves.size(), gaps.size());
    std::vector<uint64_t> used = trace.bytes_by_tick();
    std::vector<bool> has_early(trace.tick_count(), false);
    for (const Gap& gap : gaps) {
      const auto move = std::find_if(plan.moves.begin(), plan.moves.end(), [&](const auto& found) {
        return found.tensor == gap.tensor && found.evict_after == gap.after;
      });
      ASSERT_NE(move, plan.moves.end());
      EXPECT_EQ(move->needed_at, gap.before);
      EXPECT_EQ(move->fetch_at == kNoTick, !gap.comes_back());
      bool is_back = false;
      for (Tick tick = (gap.after + 1) % trace.tick_count();;
           tick = (tick + 1) % trace.tick_count()) {
        is_back |= tick == move->fetch_at;
        if (tick == gap.before) break;
        if (is_back) has_early[tick] = true;
        if (!is_back) used[tick] -= trace.tensors[gap.tensor].bytes;
        if (tick == gap.until) break;
      }
    }
    for (Tick tick = 0; tick < trace.tick_count(); ++tick) {
      if (!has_early[tick]) continue;
      EXPECT_LE(used[tick], budget_bytes) << "round " << round;
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tencache
