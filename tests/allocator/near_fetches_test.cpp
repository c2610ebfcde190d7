// SPDX-License-Identifier: Apache-2.0
//
// fetch_near_use: how far ahead a fetch may start, by hand, and its limits on random traces.
#include "learn/near_fetches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/random_trace.h"

namespace tencache {
namespace {

// Five tensors of 10 bytes. Every second op names the next one.
Trace five_in_turn() {
  Trace trace;
  trace.op_names = {"op"};
  for (uint32_t tensor = 0; tensor < 5; ++tensor) {
    trace.tensors.push_back({10, kNoTick, kNoTick});
    trace.ops.push_back({0, 100, {{tensor, false}}});
    trace.ops.push_back({0, 100, {}});
  }
  return trace;
}

std::map<uint32_t, Tick> starts(const Trace& trace, uint64_t ahead_bytes) {
  std::map<uint32_t, Tick> result;
  for (const PlannedMove& move : fetch_near_use(trace, gaps_of(trace), ahead_bytes).moves) {
    result[move.tensor] = move.fetch_at;
  }
  return result;
}

TEST(NearFetchesTest, AsManyBytesAheadAsAllowed) {
  using Starts = std::map<uint32_t, Tick>;
  // Tensor 2 is needed at op 4. With 30 bytes ahead it may start where tensor 0 is needed.
  EXPECT_EQ(starts(five_in_turn(), 30), (Starts{{0, 6}, {1, 8}, {2, 0}, {3, 2}, {4, 4}}));
  EXPECT_EQ(starts(five_in_turn(), 29), (Starts{{0, 8}, {1, 0}, {2, 2}, {3, 4}, {4, 6}}));
  // One fetch ahead is always allowed.
  EXPECT_EQ(starts(five_in_turn(), 0), starts(five_in_turn(), 20));
  // A fetch starts no further ahead than its gap.
  EXPECT_EQ(starts(five_in_turn(), 1000), (Starts{{0, 1}, {1, 3}, {2, 5}, {3, 7}, {4, 9}}));
}

TEST(NearFetchesTest, WhatOneOpNeedsStartsTogether) {
  Trace trace = five_in_turn();
  trace.ops[4].accesses = {{2, false}, {3, false}};
  trace.ops[6].accesses.clear();
  const std::map<uint32_t, Tick> near = starts(trace, 0);
  EXPECT_EQ(near.at(2), 2u);
  EXPECT_EQ(near.at(3), 2u);
}

TEST(NearFetchesTest, EachStartsWithinItsGap) {
  Random random;
  for (int round = 0; round < 300; ++round) {
    const Trace trace = random_trace(random, {.ops = 16, .tensors = 8});
    std::vector<Gap> chosen = gaps_of(trace);
    std::erase_if(chosen, [&](const Gap&) { return random.chance(0.3); });
    const Plan plan = fetch_near_use(trace, chosen, random.between(0, 40));
    ASSERT_EQ(plan.moves.size(), chosen.size());
    for (const PlannedMove& move : plan.moves) {
      const auto gap = std::find_if(chosen.begin(), chosen.end(), [&](const Gap& other) {
        return other.tensor == move.tensor && other.after == move.evict_after;
      });
      ASSERT_NE(gap, chosen.end());
      ASSERT_EQ(move.needed_at, gap->before);
      ASSERT_EQ(move.fetch_at == kNoTick, !gap->comes_back());
      if (!gap->comes_back()) continue;
      const Tick count = trace.tick_count();
      const Tick length = (gap->before + count - gap->after - 1) % count + 1;
      ASSERT_LT((move.needed_at + count - move.fetch_at) % count, length) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace tencache
