// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "memory/budget.h"
#include "support/random.h"

namespace tencache {
namespace {

TEST(HeadroomTest, IsAPartOfSmallBudgetsAndAFixedSizeOfLargeOnes) {
  EXPECT_EQ(headroom_of(320 * kMiB), 10 * kMiB);
  EXPECT_EQ(headroom_of(32 * kGiB), kGiB);
  EXPECT_EQ(headroom_of(100 * kGiB), kGiB);
  EXPECT_EQ(budget_with_headroom(310 * kMiB), 320 * kMiB);
  EXPECT_EQ(budget_with_headroom(99 * kGiB), 100 * kGiB);
}

TEST(HeadroomTest, WhatWasAskedForIsLeftBesidesIt) {
  EXPECT_EQ(budget_with_headroom(0), 0u);
  Random random;
  for (int round = 0; round < 10'000; ++round) {
    // The sizes lie around the one above which the headroom grows no more.
    const uint64_t bytes = random.between(1, 60 * kGiB);
    const uint64_t budget = budget_with_headroom(bytes);
    ASSERT_EQ(budget - headroom_of(budget), bytes);
  }
}

}  // namespace
}  // namespace tencache
