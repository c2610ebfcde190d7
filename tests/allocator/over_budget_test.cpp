// SPDX-License-Identifier: Apache-2.0
//
// What the warning about an exceeded budget blames.
#include "memory/over_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/units.h"

namespace tencache {
namespace {

using ::testing::HasSubstr;

TEST(OverBudgetTest, BytesAreAddedUpByTheReasonWhyTheyStay) {
  std::array<Extent, 6> extents;
  std::vector<ListedExtent> listed;
  uint64_t bytes = kMiB;
  for (Extent& extent : extents) {
    extent.commit();
    listed.push_back({&extent, nullptr, bytes});
    bytes *= 2;
  }
  extents[0].pin();
  extents[1].set_flags(kFlagKeepResident | kFlagSeen);
  // extents[2]: no op has named it
  extents[3].set_flags(kFlagSeen);  // may leave
  extents[4].retire();              // cached: goes first
  extents[5].set_flags(kFlagSeen);
  extents[5].pin();
  const StuckBytes stuck = add_up_stuck(listed, 7 * kMiB, 9 * kMiB);
  EXPECT_EQ(stuck.in_use, 33 * kMiB);
  EXPECT_EQ(stuck.kept, 2 * kMiB);
  EXPECT_EQ(stuck.unnamed, 4 * kMiB);
  EXPECT_EQ(stuck.small, 7 * kMiB);
  EXPECT_EQ(stuck.written, 9 * kMiB);
}

TEST(OverBudgetTest, MostOfTheBytesAreBlamed) {
  EXPECT_EQ(cause_of_excess({}, kMiB), "what it uses at once");
  EXPECT_EQ(cause_of_excess({.in_use = 2, .kept = 1, .unnamed = 1, .small = 1}, kMiB),
            "what it uses at once");
  EXPECT_THAT(cause_of_excess({.in_use = 1, .kept = 3 * kMiB}, kMiB), HasSubstr("packed weights"));
  EXPECT_THAT(cause_of_excess({.in_use = 1, .unnamed = 3 * kMiB}, kMiB),
              HasSubstr("3.00 MiB that no op has used yet"));
  const StuckBytes small = {.in_use = 1, .small = 3 * kMiB};
  EXPECT_THAT(cause_of_excess(small, 64 * kKiB),
              HasSubstr("3.00 MiB of tensors smaller than 64.0 KiB"));
  EXPECT_THAT(remedy_for_excess(small, true), HasSubstr("--extent-min"));
  EXPECT_EQ(remedy_for_excess(small, false), "");
  EXPECT_EQ(remedy_for_excess({.in_use = 1}, true), "");
  EXPECT_THAT(cause_of_excess({.in_use = 1, .written = 3 * kMiB}, kMiB),
              HasSubstr("3.00 MiB that it wrote outside of ops"));
}

}  // namespace
}  // namespace tencache
