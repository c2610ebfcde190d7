// SPDX-License-Identifier: Apache-2.0
//
// SlotTimeline: slots of one tick and of several, and which of them lie within an idle period.
#include "learn/slot_timeline.h"

#include <gtest/gtest.h>

#include <set>

#include "support/random_trace.h"

namespace tencache {
namespace {

TEST(SlotTimelineTest, HasASlotForEachTickWhileItCan) {
  Random random;
  const SlotTimeline small(random_trace(random, {.ops = kSlotsMax}));
  EXPECT_EQ(small.count(), kSlotsMax);
  EXPECT_EQ(small.slot_of(17), 17u);
  const Trace trace = random_trace(random, {.ops = kSlotsMax + 1});
  const SlotTimeline large(trace);
  EXPECT_EQ(large.count(), kSlotsMax / 2 + 1) << "two ticks in each but the last";
  EXPECT_EQ(large.slot_of(17), 8u);
  EXPECT_EQ(large.first_tick(8), 16u);
  uint64_t sum = 0;
  for (uint32_t slot = 0; slot < large.count(); ++slot) sum += large.duration_ns(slot);
  EXPECT_EQ(sum, trace.compute_ns());
  const std::vector<uint64_t> stalls(trace.tick_count(), 7);
  const SlotTimeline timed(trace, stalls);
  EXPECT_EQ(timed.duration_ns(0), large.duration_ns(0) + 2 * 7);
}

TEST(SlotTimelineTest, SlotsInsideAnIdlePeriodHoldOnlyItsTicks) {
  Random random;
  for (const Tick ops : {Tick{50}, 2 * kSlotsMax + 5}) {
    const Trace trace = random_trace(random, {.ops = ops, .tensors = 50});
    const SlotTimeline timeline(trace);
    for (const IdlePeriod& period : idle_periods(trace)) {
      std::set<Tick> idle;
      for (Tick tick = period.after; tick != period.until;) {
        tick = (tick + 1) % ops;
        idle.insert(tick);
      }
      size_t ticks_inside = 0;
      timeline.for_each(timeline.inside(period), [&](uint32_t slot) {
        const Tick end = slot + 1 == timeline.count() ? ops : timeline.first_tick(slot + 1);
        for (Tick tick = timeline.first_tick(slot); tick < end; ++tick, ++ticks_inside) {
          ASSERT_TRUE(idle.contains(tick)) << "tensor " << period.tensor << ", tick " << tick;
        }
      });
      // Of the slots at both ends, some ticks may be idle that do not count.
      const size_t ticks_per_slot = timeline.first_tick(1);
      EXPECT_GT(ticks_inside + 2 * ticks_per_slot, idle.size()) << "tensor " << period.tensor;
    }
  }
}

}  // namespace
}  // namespace tencache
