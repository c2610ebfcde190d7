// SPDX-License-Identifier: Apache-2.0
//
// BinTimeline: bins of one tick and of several, and the bins that lie within a gap.
#include "learn/bin_timeline.h"

#include <gtest/gtest.h>

#include <set>

#include "support/random_trace.h"

namespace tencache {
namespace {

TEST(BinTimelineTest, HasABinForEachTickWhileItCan) {
  Random random;
  const BinTimeline small(random_trace(random, {.ops = kBinsMax}));
  EXPECT_EQ(small.count(), kBinsMax);
  EXPECT_EQ(small.bin_of(17), 17u);
  const Trace trace = random_trace(random, {.ops = kBinsMax + 1});
  const BinTimeline large(trace);
  EXPECT_EQ(large.count(), kBinsMax / 2 + 1) << "two ticks in each but the last";
  EXPECT_EQ(large.bin_of(17), 8u);
  EXPECT_EQ(large.first_tick(8), 16u);
  uint64_t sum = 0;
  for (uint32_t bin = 0; bin < large.count(); ++bin) sum += large.duration_ns(bin);
  EXPECT_EQ(sum, trace.compute_ns());
  const std::vector<uint64_t> stalls(trace.tick_count(), 7);
  const BinTimeline timed(trace, stalls);
  EXPECT_EQ(timed.duration_ns(0), large.duration_ns(0) + 2 * 7);
}

TEST(BinTimelineTest, BinsInsideAGapHoldOnlyItsTicks) {
  Random random;
  for (const Tick ops : {Tick{50}, 2 * kBinsMax + 5}) {
    const Trace trace = random_trace(random, {.ops = ops, .tensors = 50});
    const BinTimeline timeline(trace);
    for (const Gap& gap : gaps_of(trace)) {
      std::set<Tick> idle;
      for (Tick tick = gap.after; tick != gap.until;) {
        tick = (tick + 1) % ops;
        idle.insert(tick);
      }
      size_t ticks_inside = 0;
      timeline.for_each(timeline.inside(gap), [&](uint32_t bin) {
        const Tick end = bin + 1 == timeline.count() ? ops : timeline.first_tick(bin + 1);
        for (Tick tick = timeline.first_tick(bin); tick < end; ++tick, ++ticks_inside) {
          ASSERT_TRUE(idle.contains(tick)) << "tensor " << gap.tensor << ", tick " << tick;
        }
      });
      // Some ticks of the bins at both ends may be idle, too, but do not count.
      const size_t ticks_per_bin = timeline.first_tick(1);
      EXPECT_GT(ticks_inside + 2 * ticks_per_bin, idle.size()) << "tensor " << gap.tensor;
    }
  }
}

}  // namespace
}  // namespace tencache
