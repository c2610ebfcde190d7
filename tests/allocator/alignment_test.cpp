// SPDX-License-Identifier: Apache-2.0
//
// Rows that are nearly the same: entries missing or additional on either side, rows that begin
// differently, and random rows against the edits made to them.
#include "learn/alignment.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/random.h"

namespace tencache {
namespace {

using Row = std::vector<uint64_t>;
using Counterparts = std::vector<size_t>;
constexpr size_t kNone = kUnmatched;

TEST(AlignmentTest, EqualRowsCorrespondEntryByEntry) {
  const Row row = {5, 6, 7, 8};
  EXPECT_EQ(align_ends(row, row), (Counterparts{0, 1, 2, 3}));
  EXPECT_EQ(align(row, row), (Counterparts{0, 1, 2, 3}));
  EXPECT_EQ(align_ends({}, row), (Counterparts{kNone, kNone, kNone, kNone}));
  EXPECT_TRUE(align(row, {}).empty());
}

TEST(AlignmentTest, AdditionalEntriesAreLeftOut) {
  const Row earlier = {1, 2, 3, 4, 5, 6, 7, 8};
  const Row later = {1, 2, 3, 4, 90, 91, 5, 6, 7, 8};
  EXPECT_EQ(align(earlier, later), (Counterparts{0, 1, 2, 3, kNone, kNone, 4, 5, 6, 7}));
  EXPECT_EQ(align(later, earlier), (Counterparts{0, 1, 2, 3, 6, 7, 8, 9}));
}

TEST(AlignmentTest, OnlyTheEndsNeedToBeAlike) {
  const Row earlier = {30, 31, 4, 5, 6, 7};
  const Row later = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(align_ends(earlier, later), (Counterparts{kNone, kNone, kNone, 2, 3, 4, 5}));
}

TEST(AlignmentTest, ALongInsertionLeavesBothSidesAligned) {
  Row earlier;
  for (uint64_t entry = 1; entry <= 50; ++entry) earlier.push_back(entry);
  Row later(earlier.begin(), earlier.begin() + 20);
  later.insert(later.end(), 5000, 99);
  later.insert(later.end(), earlier.begin() + 20, earlier.end());
  const Counterparts found = align(earlier, later);
  for (size_t index = 0; index < 20; ++index) EXPECT_EQ(found[index], index);
  EXPECT_EQ(found[20], kNone);
  EXPECT_EQ(found[5019], kNone);
  for (size_t index = 20; index < 50; ++index) EXPECT_EQ(found[index + 5000], index);
}

// Entries are all different, so every correspondence that is found must be right. Most must be
// found.
TEST(AlignmentTest, RandomEditsAreFound) {
  Random random;
  for (int round = 0; round < 50; ++round) {
    Row earlier;
    Row later;
    size_t common = 0;
    for (uint64_t entry = 0; entry < 300; ++entry) {
      const bool is_edited = random.chance(0.02);
      if (is_edited && random.chance(0.5)) {
        later.push_back(1'000'000 + entry);
      } else if (is_edited) {
        earlier.push_back(entry);
        continue;
      }
      earlier.push_back(entry);
      later.push_back(entry);
      ++common;
    }
    size_t found = 0;
    const Counterparts counterparts = align(earlier, later);
    for (size_t index = 0; index < later.size(); ++index) {
      if (counterparts[index] == kNone) continue;
      EXPECT_EQ(earlier[counterparts[index]], later[index]);
      ++found;
    }
    EXPECT_GE(found, common * 9 / 10) << "round " << round;
  }
}

}  // namespace
}  // namespace tencache
