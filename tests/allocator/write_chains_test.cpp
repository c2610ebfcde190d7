// SPDX-License-Identifier: Apache-2.0
//
// WriteChains: which gaps share a write, also across the border of the period. On random traces the
// chains are compared with a walk over the period.
#include "learn/write_chains.h"

#include <gtest/gtest.h>

#include "support/random_trace.h"

namespace tencache {
namespace {

constexpr uint32_t kNone = WriteChains::kNone;

// One tensor, which every second op names; op `written` writes it.
Trace named_by_every_second_op(uint32_t written) {
  Trace trace;
  trace.op_names = {"op"};
  trace.tensors = {{10, kNoTick, kNoTick}};
  for (uint32_t tick = 0; tick < 8; ++tick) {
    trace.ops.push_back({0, 100, {}});
    if (tick % 2 == 0) trace.ops[tick].accesses = {{0, tick == written}};
  }
  return trace;
}

TEST(WriteChainsTest, AChainBeginsWithAWrite) {
  const std::vector<Gap> gaps = gaps_of(named_by_every_second_op(2));
  ASSERT_EQ(gaps.size(), 4u);
  const WriteChains chains(gaps);
  // Gap 1 follows the write; 0 is the last of the chain, a repetition later.
  EXPECT_EQ(chains.before(1), kNone);
  EXPECT_EQ(chains.after(1), 2u);
  EXPECT_EQ(chains.after(2), 3u);
  EXPECT_EQ(chains.after(3), 0u);
  EXPECT_EQ(chains.before(0), 3u);
  EXPECT_EQ(chains.after(0), kNone);
}

TEST(WriteChainsTest, TheFirstChosenGapOfAChainWrites) {
  const std::vector<Gap> gaps = gaps_of(named_by_every_second_op(2));
  const WriteChains chains(gaps);
  std::vector<bool> chosen = {false, false, true, false};
  EXPECT_TRUE(chains.needs_write(1, chosen));
  EXPECT_TRUE(chains.needs_write(2, chosen));
  EXPECT_FALSE(chains.needs_write(3, chosen)) << "gap 2 made a copy";
  EXPECT_FALSE(chains.needs_write(0, chosen)) << "a repetition later";
  EXPECT_TRUE(chains.serves_later(1, chosen));
  EXPECT_FALSE(chains.serves_later(2, chosen));
  EXPECT_FALSE(chains.serves_later(0, chosen));
}

TEST(WriteChainsTest, WhatNobodyWritesHasACopy) {
  const std::vector<Gap> gaps = gaps_of(named_by_every_second_op(9));
  const WriteChains chains(gaps);
  for (uint32_t gap = 0; gap < 4; ++gap) {
    EXPECT_FALSE(chains.needs_write(gap, std::vector<bool>(4, false)));
    EXPECT_EQ(chains.before(gap), kNone);
    EXPECT_EQ(chains.after(gap), kNone);
  }
}

/// Whether the tensor is written between its latest departure in a chosen gap and this gap.
bool is_stale_by_walk(const Trace& trace, const std::vector<Gap>& gaps, uint32_t index,
                      const std::vector<bool>& chosen) {
  const uint32_t tensor = gaps[index].tensor;
  const TraceTensor& life = trace.tensors[tensor];
  const Tick count = trace.tick_count();
  Tick tick = gaps[index].after;
  for (Tick walked = 0; walked < count; ++walked) {
    for (const TraceAccess& access : trace.ops[tick].accesses) {
      if (access.tensor == tensor && access.is_write) return true;
    }
    if (tick == life.allocated_at) return true;
    tick = (tick + count - 1) % count;
    for (uint32_t other = 0; other < gaps.size(); ++other) {
      const bool begins_here = gaps[other].tensor == tensor && gaps[other].after == tick;
      if (begins_here && chosen[other] && other != index) return false;
    }
  }
  return false;  // nobody writes it
}

TEST(WriteChainsTest, AgreesWithAWalkOverThePeriod) {
  Random random;
  for (int round = 0; round < 300; ++round) {
    const Trace trace = random_trace(random, {.ops = 16, .tensors = 6});
    const std::vector<Gap> gaps = gaps_of(trace);
    const WriteChains chains(gaps);
    std::vector<bool> chosen(gaps.size());
    for (size_t gap = 0; gap < gaps.size(); ++gap) chosen[gap] = random.chance(0.4);
    for (uint32_t gap = 0; gap < gaps.size(); ++gap) {
      ASSERT_EQ(chains.needs_write(gap, chosen), is_stale_by_walk(trace, gaps, gap, chosen))
          << "round " << round << ", gap " << gap;
    }
  }
}

}  // namespace
}  // namespace tencache
