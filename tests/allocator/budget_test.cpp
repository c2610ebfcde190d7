// SPDX-License-Identifier: Apache-2.0
//
// The budget's limit, its attention mark and its peak, on one thread and on several.
#include "memory/budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "support/random.h"

namespace tencache {
namespace {

TEST(BudgetTest, ReservesUpToTheLimitExactly) {
  Counter peak{0};
  Budget budget(1000, 700, peak);
  EXPECT_TRUE(budget.try_reserve(1000));
  EXPECT_FALSE(budget.try_reserve(1));
  EXPECT_EQ(budget.free(), 0u);
  budget.release(400);
  EXPECT_EQ(budget.free(), 400u);
  EXPECT_FALSE(budget.try_reserve(401));
  EXPECT_EQ(budget.used(), 600u);
  EXPECT_TRUE(budget.try_reserve(400));
  EXPECT_EQ(peak.load(), 1000u);
}

TEST(BudgetTest, HugeRequestsDoNotOverflow) {
  Counter peak{0};
  Budget budget(1000, 700, peak);
  ASSERT_TRUE(budget.try_reserve(10));
  EXPECT_FALSE(budget.try_reserve(~uint64_t{0}));
  EXPECT_FALSE(budget.try_reserve(~uint64_t{0} - 5));
  EXPECT_EQ(budget.used(), 10u);
  EXPECT_EQ(peak.load(), 10u);
}

TEST(BudgetTest, ForcedReservationsTellTheExcess) {
  Counter peak{0};
  Budget budget(1000, 700, peak);
  EXPECT_EQ(budget.force_reserve(900), 0u);
  EXPECT_EQ(budget.force_reserve(100), 0u);
  EXPECT_EQ(budget.excess(), 0u);
  EXPECT_EQ(budget.force_reserve(300), 300u);
  EXPECT_EQ(budget.excess(), 300u);
  EXPECT_EQ(budget.free(), 0u);
  EXPECT_EQ(peak.load(), 1300u);
  EXPECT_FALSE(budget.try_reserve(1));
  budget.release(301);
  EXPECT_TRUE(budget.try_reserve(1));
}

TEST(BudgetTest, AttentionIsAboveTheMark) {
  Counter peak{0};
  Budget budget(1000, 700, peak);
  ASSERT_TRUE(budget.try_reserve(700));
  EXPECT_FALSE(budget.needs_attention());
  ASSERT_TRUE(budget.try_reserve(1));
  EXPECT_TRUE(budget.needs_attention());
  EXPECT_TRUE(budget.is_scarce(0));
  EXPECT_TRUE(budget.is_scarce(~uint64_t{0}));
  budget.set_attention(900);
  EXPECT_FALSE(budget.needs_attention());
  EXPECT_FALSE(budget.is_scarce(199));
  EXPECT_TRUE(budget.is_scarce(200));
}

TEST(BudgetTest, ThreadsNeverPassTheLimitTogether) {
  Counter peak{0};
  Budget budget(1000, 700, peak);
  {
    std::vector<std::jthread> threads;
    for (uint64_t index = 0; index < 4; ++index) {
      threads.emplace_back([&budget, index] {
        Random random(index);
        for (int round = 0; round < 20000; ++round) {
          const uint64_t bytes = random.between(1, 400);
          if (!budget.try_reserve(bytes)) continue;
          if (budget.used() > budget.limit()) ADD_FAILURE() << budget.used();
          budget.release(bytes);
        }
      });
    }
  }
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_LE(peak.load(), 1000u);
  EXPECT_GT(peak.load(), 0u);
}

#ifndef NDEBUG
TEST(BudgetDeathTest, MoreIsNeverReleasedThanReserved) {
  Counter peak{0};
  Budget budget(1000, 700, peak);
  ASSERT_TRUE(budget.try_reserve(10));
  EXPECT_DEATH(budget.release(11), "10 < 11");
}
#endif

}  // namespace
}  // namespace tencache
