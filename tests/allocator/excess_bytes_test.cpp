// SPDX-License-Identifier: Apache-2.0
//
// ExcessBytes against sums bin by bin, on random traces and ranges.
#include "learn/excess_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/random_trace.h"

namespace tencache {
namespace {

TEST(ExcessBytesTest, SumsWhatAWalkThroughTheBinsSums) {
  Random random;
  for (int round = 0; round < 50; ++round) {
    const Tick ops = static_cast<Tick>(random.between(1, 300));
    const Trace trace = random_trace(random, {.ops = ops, .tensors = 40});
    const BinTimeline timeline(trace);
    std::vector<uint64_t> bytes = timeline.maxima(trace.bytes_by_tick());
    const uint64_t budget = random.between(0, *std::max_element(bytes.begin(), bytes.end()));
    ExcessBytes excess(timeline, trace, budget);
    for (uint64_t& of_bin : bytes) of_bin -= std::min(of_bin, budget);
    for (int step = 0; step < 100; ++step) {
      const BinTimeline::Range away = {static_cast<uint32_t>(random.between(0, ops - 1)),
                                       static_cast<uint32_t>(random.between(0, ops))};
      const uint64_t tensor_bytes = random.between(1, 8);
      uint64_t sum = 0;
      timeline.for_each(away, [&](uint32_t bin) {
        sum += std::min(tensor_bytes, bytes[bin]) * (timeline.duration_ns(bin) + 1);
      });
      ASSERT_EQ(excess.benefit(away, tensor_bytes), static_cast<double>(sum)) << "round " << round;
      excess.take(away, tensor_bytes);
      timeline.for_each(away,
                        [&](uint32_t bin) { bytes[bin] -= std::min(tensor_bytes, bytes[bin]); });
      ASSERT_EQ(excess.is_zero(), std::count(bytes.begin(), bytes.end(), 0u) == ops);
    }
  }
}

}  // namespace
}  // namespace tencache
