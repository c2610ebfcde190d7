// SPDX-License-Identifier: Apache-2.0
//
// LinkTime against a walk through a range bin by bin, on random traces and ranges.
#include "learn/link_time.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/random_trace.h"

namespace tencache {
namespace {

using Range = BinTimeline::Range;

class Walk {
 public:
  explicit Walk(const BinTimeline& timeline) : timeline_(timeline) {
    for (uint32_t bin = 0; bin < timeline.count(); ++bin) {
      free_ns_.push_back(timeline.duration_ns(bin));
    }
  }

  std::optional<uint32_t> bins(const Range& range, uint64_t ns, bool is_backward) const {
    const std::vector<uint32_t> order = bins_of(range, is_backward);
    for (uint32_t walked = 0; walked < order.size(); ++walked) {
      if (free_ns_[order[walked]] >= ns) return walked + 1;
      ns -= free_ns_[order[walked]];
    }
    return std::nullopt;
  }
  void take(const Range& range, uint64_t ns, bool is_backward) {
    for (const uint32_t bin : bins_of(range, is_backward)) {
      const uint64_t taken = std::min(ns, free_ns_[bin]);
      free_ns_[bin] -= taken;
      ns -= taken;
    }
  }

 private:
  std::vector<uint32_t> bins_of(const Range& range, bool is_backward) const {
    std::vector<uint32_t> bins;
    timeline_.for_each(range, [&](uint32_t bin) { bins.push_back(bin); });
    if (is_backward) std::reverse(bins.begin(), bins.end());
    return bins;
  }

  const BinTimeline& timeline_;
  std::vector<uint64_t> free_ns_;
};

TEST(LinkTimeTest, GivesWhatAWalkThroughTheBinsGives) {
  Random random;
  for (int round = 0; round < 50; ++round) {
    const Trace trace =
        random_trace(random, {.ops = static_cast<Tick>(random.between(1, 300)), .tensors = 1});
    const BinTimeline timeline(trace);
    LinkTime link(timeline);
    Walk walk(timeline);
    for (int step = 0; step < 200; ++step) {
      const Range range = {static_cast<uint32_t>(random.between(0, timeline.count() - 1)),
                           static_cast<uint32_t>(random.between(0, timeline.count()))};
      const uint64_t ns = random.between(0, trace.compute_ns() / 2);
      ASSERT_EQ(link.bins_forward(range, ns), walk.bins(range, ns, false)) << "round " << round;
      ASSERT_EQ(link.bins_backward(range, ns), walk.bins(range, ns, true)) << "round " << round;
      const uint64_t taken_ns = random.between(0, trace.compute_ns() / 50);
      if (random.chance(0.5)) {
        link.take_forward(range, taken_ns);
        walk.take(range, taken_ns, false);
      } else {
        link.take_backward(range, taken_ns);
        walk.take(range, taken_ns, true);
      }
    }
  }
}

}  // namespace
}  // namespace tencache
