// SPDX-License-Identifier: Apache-2.0
//
// CachedRuns: neighbours join, gaps divide, and the tightest run comes first.
#include "memory/cached_runs.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/units.h"

namespace tencache {
namespace {

constexpr uint64_t kGranule = kGranuleBytes;

class CachedRunsTest : public ::testing::Test {
 protected:
  static const char* at(uint64_t granule) {
    return reinterpret_cast<const char*>((1000 + granule) * kGranule);
  }
  /// Returns where the tightest run begins, or null if there is none.
  const char* tightest(uint64_t bytes) const {
    const auto fits = runs_.tightest(bytes, 1);
    return fits.empty() ? nullptr : fits[0].data();
  }
  CachedRuns runs_{at(0), 100 * kGranule};
};

TEST_F(CachedRunsTest, AtFirstThereIsNone) {
  EXPECT_EQ(tightest(kGranule), nullptr);
  EXPECT_TRUE(runs_.tightest(kGranule, 9).empty());
  EXPECT_EQ(runs_.bytes(), 0u);
}

TEST_F(CachedRunsTest, NeighboursJoin) {
  runs_.add(at(4), 2 * kGranule);
  runs_.add(at(7), kGranule);
  EXPECT_EQ(tightest(3 * kGranule), nullptr);
  runs_.add(at(6), kGranule);
  EXPECT_EQ(tightest(3 * kGranule), at(4));
  EXPECT_EQ(runs_.bytes(), 4 * kGranule);
  EXPECT_TRUE(runs_.is_valid());
}

TEST_F(CachedRunsTest, AGranuleThatIsNotFullDivides) {
  runs_.add(at(0), 2 * kGranule + kMiB);
  runs_.add(at(3), 2 * kGranule);
  runs_.add(at(5), kMiB);
  EXPECT_EQ(runs_.bytes(), 4 * kGranule);
  EXPECT_EQ(tightest(3 * kGranule), nullptr);
  runs_.take(at(5), kMiB);
  runs_.take(at(0), 2 * kGranule + kMiB);
  EXPECT_EQ(tightest(kGranule), at(3));
}

TEST_F(CachedRunsTest, WhatIsTakenFromTheMiddleDivides) {
  runs_.add(at(10), 10 * kGranule);
  runs_.take(at(14), 3 * kGranule);
  EXPECT_EQ(tightest(kGranule), at(17)) << "three granules";
  EXPECT_EQ(tightest(4 * kGranule), at(10));
  EXPECT_EQ(tightest(5 * kGranule), nullptr);
}

TEST_F(CachedRunsTest, TheTightestComeFirst) {
  runs_.add(at(0), 9 * kGranule);
  runs_.add(at(20), 5 * kGranule);
  runs_.add(at(40), 7 * kGranule);
  const auto fits = runs_.tightest(6 * kGranule, 9);
  ASSERT_EQ(fits.size(), 2u);
  EXPECT_EQ(fits[0].data(), at(40));
  EXPECT_EQ(fits[0].size(), 7 * kGranule);
  EXPECT_EQ(fits[1].data(), at(0));
  EXPECT_EQ(runs_.tightest(kGranule, 1).size(), 1u);
}

}  // namespace
}  // namespace tencache
