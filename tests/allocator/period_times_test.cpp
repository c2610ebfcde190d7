// SPDX-License-Identifier: Apache-2.0
//
// The median of the newest periods.
#include "engine/plan/period_times.h"

#include <gtest/gtest.h>

namespace tencache {
namespace {

TEST(PeriodTimesTest, NothingIsKnownWithoutAPeriod) {
  const PeriodTimes times;
  EXPECT_EQ(times.count(), 0u);
  EXPECT_EQ(times.median_ns(), 0u);
}

TEST(PeriodTimesTest, OneDisturbedPeriodDoesNotShow) {
  PeriodTimes times;
  times.add(10);
  EXPECT_EQ(times.median_ns(), 10u);
  times.add(900);
  EXPECT_EQ(times.median_ns(), 10u) << "the smaller one in the middle";
  times.add(11);
  EXPECT_EQ(times.median_ns(), 11u);
  EXPECT_EQ(times.count(), 3u);
}

TEST(PeriodTimesTest, OnlyTheNewestCount) {
  PeriodTimes times;
  for (uint64_t ns = 1; ns <= 3 * PeriodTimes::kKept; ++ns) times.add(ns);
  EXPECT_EQ(times.count(), PeriodTimes::kKept);
  EXPECT_EQ(times.median_ns(), 3 * PeriodTimes::kKept - PeriodTimes::kKept / 2);
}

}  // namespace
}  // namespace tencache
