// SPDX-License-Identifier: Apache-2.0
//
// RecordChoice: the kind that needs the most memory is recorded. Of its periods, the newest one for
// the largest sizes is taken, and later ops take the place of those of a first guess.
#include "abi/record_choice.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "base/units.h"

namespace tencache {
namespace {

LearnedPlan learned(uint64_t number, uint64_t peak_bytes, uint64_t born_bytes = 0,
                    uint32_t ticks = 3) {
  auto period = std::make_shared<Period>();
  period->trace.op_names = {"op"};
  for (uint32_t tick = 0; tick < ticks; ++tick) {
    period->trace.ops.push_back({0, 1'000'000, {{0, false}}});
    period->digests.push_back(7);
  }
  period->trace.tensors.push_back({peak_bytes, kNoTick, kNoTick});
  period->extent_ids.push_back(1);
  period->born_bytes = born_bytes;
  LearnedPlan plan;
  plan.number = number;
  plan.period = std::move(period);
  return plan;
}

TEST(RecordChoiceTest, OfSeveralKindsTheOneThatNeedsTheMostMemory) {
  RecordChoice choice;
  EXPECT_TRUE(choice.takes(learned(1, 10 * kMiB)));
  EXPECT_FALSE(choice.takes(learned(2, 9 * kMiB)));
  EXPECT_TRUE(choice.takes(learned(3, 11 * kMiB)));
  EXPECT_FALSE(choice.takes(learned(1, 10 * kMiB)));
}

TEST(RecordChoiceTest, OfOneKindTheNewestForTheLargestSizes) {
  RecordChoice choice;
  EXPECT_TRUE(choice.takes(learned(1, 10 * kMiB, 5)));
  EXPECT_FALSE(choice.takes(learned(1, 9 * kMiB, 4)));
  EXPECT_TRUE(choice.takes(learned(1, 9 * kMiB, 5)));
  EXPECT_TRUE(choice.takes(learned(1, 9 * kMiB, 6)));
}

TEST(RecordChoiceTest, OfSeveralEnginesTheOneThatNeedsTheMostMemory) {
  RecordChoice choice;
  EXPECT_TRUE(choice.takes(learned(1, 10 * kMiB, 5), 0));
  EXPECT_FALSE(choice.takes(learned(1, 9 * kMiB, 6), 1)) << "the number is another engine's";
  EXPECT_TRUE(choice.takes(learned(1, 11 * kMiB, 1), 1));
  EXPECT_FALSE(choice.takes(learned(1, 10 * kMiB, 7), 0));
  EXPECT_TRUE(choice.takes(learned(1, 9 * kMiB, 2), 1)) << "the same kind, newer";
}

TEST(RecordChoiceTest, AStepIsBetterThanTheGuessBeforeIt) {
  RecordChoice choice;
  EXPECT_TRUE(choice.takes(learned(1, 10 * kMiB, 5, 4)));
  EXPECT_TRUE(choice.takes(learned(1, 9 * kMiB, 4, 3)));
  EXPECT_FALSE(choice.takes(learned(1, 8 * kMiB, 3, 3)));
}

TEST(RecordChoiceTest, AStepSeenFromAnotherTickIsTheSameStep) {
  const auto from = [](uint64_t first_digest, uint64_t born_bytes) {
    LearnedPlan plan = learned(1, 10 * kMiB, born_bytes, 2);
    auto period = std::make_shared<Period>(*plan.period);
    period->digests = {first_digest, 3 - first_digest};
    plan.period = std::move(period);
    return plan;
  };
  RecordChoice choice;
  EXPECT_TRUE(choice.takes(from(1, 5)));
  EXPECT_TRUE(choice.takes(from(2, 5)));
  LearnedPlan smaller = from(1, 4);
  auto period = std::make_shared<Period>(*smaller.period);
  period->trace.tensors[0].bytes /= 2;
  smaller.period = std::move(period);
  EXPECT_FALSE(choice.takes(smaller));
}

}  // namespace
}  // namespace tencache
