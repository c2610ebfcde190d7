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
using From = LinkTime::From;

class Walk {
 public:
  explicit Walk(const BinTimeline& timeline) : timeline_(timeline) {
    for (uint32_t bin = 0; bin < timeline.count(); ++bin) {
      free_ns_.push_back(timeline.duration_ns(bin));
    }
  }

  std::optional<uint32_t> bins(const Range& range, uint64_t ns, From from) const {
    const std::vector<uint32_t> order = bins_of(range, from);
    for (uint32_t walked = 0; walked < order.size(); ++walked) {
      if (free_ns_[order[walked]] >= ns) return walked + 1;
      ns -= free_ns_[order[walked]];
    }
    return std::nullopt;
  }
  void take(const Range& range, uint64_t ns, From from) {
    for (const uint32_t bin : bins_of(range, from)) {
      const uint64_t taken = std::min(ns, free_ns_[bin]);
      free_ns_[bin] -= taken;
      ns -= taken;
    }
  }

 private:
  std::vector<uint32_t> bins_of(const Range& range, From from) const {
    std::vector<uint32_t> bins;
    timeline_.for_each(range, [&](uint32_t bin) { bins.push_back(bin); });
    if (from == From::kEnd) std::reverse(bins.begin(), bins.end());
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
      for (const From from : {From::kStart, From::kEnd}) {
        ASSERT_EQ(link.bins(range, ns, from), walk.bins(range, ns, from)) << "round " << round;
      }
      const uint64_t taken_ns = random.between(0, trace.compute_ns() / 50);
      const From from = random.chance(0.5) ? From::kStart : From::kEnd;
      link.take(range, taken_ns, from);
      walk.take(range, taken_ns, from);
    }
  }
}

}  // namespace
}  // namespace tencache
