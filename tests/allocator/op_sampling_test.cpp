// SPDX-License-Identifier: Apache-2.0
//
// Which ticks are timed: new ones first, all of a program in some repetitions, and never more than
// the share of time that timing may take.
#include "engine/gate/op_sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"

namespace tencache {
namespace {

constexpr uint64_t kCost = 10'000;  // of one sample

TEST(OpSamplingTest, WhatIsNewComesFirst) {
  OpSampling sampling;
  uint64_t now = timestamp();
  // Many small ops of one kind, and now and then a large one of another.
  for (uint64_t tick = 0; tick < 3000; ++tick) {
    const bool is_large = tick % 1000 == 999;
    now += is_large ? 100 * kCost : kCost;
    const bool is_wanted = sampling.wants(is_large ? 1 : 2, now);
    if (is_wanted) sampling.charge(kCost);
    if (is_large && tick < 2000) {
      EXPECT_TRUE(is_wanted) << tick;
    }
  }
}

TEST(OpSamplingTest, TakesNoMoreThanItsShare) {
  OpSampling sampling;
  uint64_t now = timestamp();
  const uint64_t begun_at = now;
  uint64_t samples = 0;
  for (uint64_t tick = 0; tick < 100'000; ++tick) {
    now += kCost;  // each is new, and is no longer than timing it takes
    if (!sampling.wants(tick * 0x9e3779b97f4a7c15u, now)) continue;
    sampling.charge(kCost);
    ++samples;
  }
  const uint64_t share = (now - begun_at) / 32;
  EXPECT_LE(samples * kCost, share + 60 * kCost);
  EXPECT_GE(samples * kCost, share / 5) << "and uses it";
}

// Every tick has its turn whatever the program's length, and although all ticks have one digest.
TEST(OpSamplingTest, EveryTickOfAProgramHasItsTurn) {
  for (const uint64_t length : {7u, 64u, 420u, 1024u}) {
    OpSampling sampling;
    uint64_t now = timestamp();
    std::vector<uint64_t> samples(length, 0);
    for (uint64_t tick = 0; tick < 40 * length; ++tick) {
      now += 40 * kCost;
      if (!sampling.wants(5, now)) continue;
      sampling.charge(kCost);
      ++samples[tick % length];
    }
    EXPECT_GT(std::ranges::min(samples), 0u) << length;
  }
}

TEST(OpSamplingTest, ACallThatWaitedCostsLittle) {
  OpSampling sampling;
  uint64_t now = timestamp();
  EXPECT_TRUE(sampling.wants(1, now));
  sampling.charge(uint64_t{1} << 40);
  EXPECT_TRUE(sampling.wants(1, ++now));
}

}  // namespace
}  // namespace tencache
