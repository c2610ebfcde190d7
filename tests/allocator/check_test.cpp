// SPDX-License-Identifier: Apache-2.0
//
// Failed checks end the process with one line that names place and values.
#include "base/check.h"

#include <gtest/gtest.h>

namespace tencache {
namespace {

TEST(CheckDeathTest, NamesConditionPlaceAndValues) {
  const int used = 3;
  EXPECT_DEATH(TENCACHE_CHECK(used == 4, "used %d of %d", used, 4),
               "tencache: check failed: used == 4 at .*check_test.cpp:[0-9]+: used 3 of 4\n");
}

TEST(CheckDeathTest, WorksWithoutText) {
  EXPECT_DEATH(TENCACHE_CHECK(1 > 2), "check failed: 1 > 2 at .*check_test.cpp:[0-9]+\n");
}

TEST(CheckDeathTest, FatalNamesTheReason) {
  EXPECT_DEATH(fatal("slot at %d was lost", 4096), "tencache: fatal: slot at 4096 was lost\n");
}

TEST(CheckDeathTest, EndsBySigabrt) {
  EXPECT_EXIT(fatal("x"), ::testing::KilledBySignal(SIGABRT), "");
}

TEST(CheckTest, AHoldingCheckEvaluatesOnceAndGoesOn) {
  int evaluated = 0;
  TENCACHE_CHECK(++evaluated == 1);
  EXPECT_EQ(evaluated, 1);
}

TEST(CheckDeathTest, DebugChecksFollowTheBuild) {
#ifdef NDEBUG
  int evaluated = 0;
  TENCACHE_DCHECK(++evaluated == 0);
  EXPECT_EQ(evaluated, 0);
#else
  EXPECT_DEATH(TENCACHE_DCHECK(false, "in debug"), "in debug");
#endif
}

}  // namespace
}  // namespace tencache
