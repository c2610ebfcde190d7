// SPDX-License-Identifier: Apache-2.0
//
// RangeAllocator: its policy in small cases, and a long random run against a bitmap.
#include "base/range_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/sanitizers.h"
#include "support/random.h"

namespace tencache {
namespace {

TEST(RangeAllocatorTest, AnEmptySpaceGivesNothing) {
  RangeAllocator ranges(0);
  EXPECT_EQ(ranges.allocate(1), std::nullopt);
  EXPECT_EQ(ranges.largest_free(), 0U);
  EXPECT_EQ(ranges.free_at_end(), 0U);
  EXPECT_TRUE(ranges.is_valid());
}

TEST(RangeAllocatorTest, TakesTheLowestOfEqualRanges) {
  RangeAllocator ranges(10);
  EXPECT_EQ(ranges.allocate(4), 0U);
  EXPECT_EQ(ranges.allocate(4), 4U);
  EXPECT_EQ(ranges.allocate(2), 8U);
  EXPECT_EQ(ranges.allocate(1), std::nullopt);
  ranges.free(4, 4);
  ranges.free(0, 4);
  EXPECT_EQ(ranges.largest_free(), 8U);
  EXPECT_EQ(ranges.allocate(3), 0U);
  EXPECT_TRUE(ranges.is_valid());
}

TEST(RangeAllocatorTest, TakesTheTightestRange) {
  RangeAllocator ranges(100);
  ASSERT_EQ(ranges.allocate(100), 0U);
  ranges.free(10, 20);
  ranges.free(50, 5);
  ranges.free(70, 6);
  using Fits = std::vector<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(ranges.best_fits(6, 9), (Fits{{70, 6}, {10, 20}}));
  EXPECT_EQ(ranges.best_fits(1, 2), (Fits{{50, 5}, {70, 6}}));
  EXPECT_EQ(ranges.best_fits(21, 9), Fits());
  EXPECT_EQ(ranges.allocate(5), 50U);
  EXPECT_EQ(ranges.allocate(5), 70U);
  EXPECT_EQ(ranges.allocate(5), 10U);
  EXPECT_TRUE(ranges.is_valid());
}

TEST(RangeAllocatorTest, TakesAPartOfAFreeRange) {
  RangeAllocator ranges(30);
  EXPECT_EQ(ranges.best_fit(30), 0U);
  ranges.take(10, 5);
  EXPECT_EQ(ranges.used(), 5U);
  EXPECT_EQ(ranges.best_fit(11), 15U);
  EXPECT_EQ(ranges.best_fit(10), 0U);
  ranges.take(0, 10);
  ranges.take(25, 5);
  EXPECT_EQ(ranges.best_fit(1), 15U);
  ranges.take(15, 10);
  EXPECT_EQ(ranges.best_fit(1), std::nullopt);
  EXPECT_TRUE(ranges.is_valid());
}

TEST(RangeAllocatorTest, CoalescesWithBothNeighbours) {
  RangeAllocator ranges(30);
  ASSERT_EQ(ranges.allocate(30), 0U);
  ranges.free(0, 10);
  ranges.free(20, 10);
  EXPECT_EQ(ranges.largest_free(), 10U);
  ranges.free(10, 10);
  EXPECT_EQ(ranges.largest_free(), 30U);
  EXPECT_EQ(ranges.used(), 0U);
  EXPECT_TRUE(ranges.is_valid());
}

TEST(RangeAllocatorTest, GrowthJoinsWhatIsFreeAtTheEnd) {
  RangeAllocator ranges(10);
  ASSERT_EQ(ranges.allocate(6), 0U);
  EXPECT_EQ(ranges.free_at_end(), 4U);
  ranges.grow(20);
  EXPECT_EQ(ranges.free_at_end(), 14U);
  EXPECT_EQ(ranges.allocate(14), 6U);
  EXPECT_EQ(ranges.free_at_end(), 0U);
  ranges.grow(20);
  ranges.grow(25);
  EXPECT_EQ(ranges.limit(), 25U);
  EXPECT_EQ(ranges.free_at_end(), 5U);
  ranges.free(0, 3);
  EXPECT_EQ(ranges.free_at_end(), 5U);
  EXPECT_TRUE(ranges.is_valid());
}

TEST(RangeAllocatorTest, NoRangeCrossesABorder) {
  RangeAllocator ranges(0);
  const uint64_t first = ranges.grow_behind_border(10);
  const uint64_t second = ranges.grow_behind_border(10);
  EXPECT_EQ(second, first + 11);
  EXPECT_EQ(ranges.largest_free(), 10U);
  EXPECT_EQ(ranges.allocate(11), std::nullopt);
  EXPECT_EQ(ranges.allocate(10), first);
  EXPECT_EQ(ranges.allocate(10), second);
  EXPECT_EQ(ranges.used(), 20U);
  ranges.free(second, 10);
  ranges.free(first, 10);
  EXPECT_EQ(ranges.largest_free(), 10U) << "both sides are free, and stay apart";
  EXPECT_EQ(ranges.used(), 0U);
  ranges.grow(ranges.limit() + 5);
  EXPECT_EQ(ranges.allocate(15), second) << "growth without a border joins";
  EXPECT_TRUE(ranges.is_valid());
}

TEST(RangeAllocatorDeathTest, RefusesToFreeABorder) {
  RangeAllocator ranges(0);
  const uint64_t first = ranges.grow_behind_border(10);
  const uint64_t second = ranges.grow_behind_border(10);
  ASSERT_EQ(ranges.allocate(10), first);
  ASSERT_EQ(ranges.allocate(10), second);
  EXPECT_DEATH(ranges.free(first, 11), "across a border");
  EXPECT_DEATH(ranges.free(first + 5, 10), "across a border");
  EXPECT_DEATH(ranges.free(second - 1, 2), "across a border");
  EXPECT_DEATH((void)ranges.grow_behind_border(0), "length 0 behind a border");
}

TEST(RangeAllocatorDeathTest, RefusesToFreeWhatIsNotInUse) {
  RangeAllocator ranges(20);
  ASSERT_EQ(ranges.allocate(10), 0U);
  EXPECT_DEATH(ranges.free(5, 10), "freed");
  EXPECT_DEATH(ranges.free(10, 5), "freed");
  EXPECT_DEATH(ranges.free(18, 5), "freed");
  EXPECT_DEATH(ranges.free(UINT64_MAX, 2), "freed");
  EXPECT_DEATH(ranges.free(0, 0), "freed");
  EXPECT_DEATH(ranges.free(0, 11), "freed");
  ranges.free(2, 2);
  EXPECT_DEATH(ranges.free(0, 5), "freed twice");
  EXPECT_DEATH(ranges.free(3, 2), "freed twice");
  EXPECT_DEATH((void)ranges.allocate(0), "length 0");
  EXPECT_DEATH((void)ranges.best_fit(0), "length 0");
  EXPECT_DEATH(ranges.take(0, 1), "not free");
  EXPECT_DEATH(ranges.take(9, 3), "not free");
  EXPECT_DEATH(ranges.take(18, 3), "not free");
  EXPECT_DEATH(ranges.take(15, UINT64_MAX), "not free");
  EXPECT_DEATH(ranges.take(15, 0), "not free");
  EXPECT_DEATH(ranges.grow(19), "shrink");
}

/// The reference: one flag a unit, searched from end to end.
class BitmapModel {
 public:
  std::optional<uint64_t> best_fit(uint64_t length) const {
    std::optional<uint64_t> best;
    uint64_t best_length = UINT64_MAX;
    for_each_gap([&](uint64_t offset, uint64_t gap) {
      if (gap >= length && gap < best_length) {
        best = offset;
        best_length = gap;
      }
    });
    return best;
  }
  uint64_t largest_gap() const {
    uint64_t largest = 0;
    for_each_gap([&](uint64_t, uint64_t gap) { largest = std::max(largest, gap); });
    return largest;
  }
  uint64_t gap_at(uint64_t offset) const {
    const auto end = std::find(used_.begin() + static_cast<ptrdiff_t>(offset), used_.end(), true);
    return static_cast<uint64_t>(end - used_.begin()) - offset;
  }
  void set(uint64_t offset, uint64_t length, bool used) {
    for (uint64_t i = offset; i < offset + length; ++i) {
      ASSERT_NE(used_[i], used) << "unit " << i;
      used_[i] = used;
    }
  }
  void grow(uint64_t limit) { used_.resize(limit, false); }
  uint64_t limit() const { return used_.size(); }
  uint64_t used() const {
    return static_cast<uint64_t>(std::count(used_.begin(), used_.end(), true));
  }

 private:
  template <typename Visit>
  void for_each_gap(Visit visit) const {
    uint64_t begin = 0;
    for (uint64_t i = 0; i <= used_.size(); ++i) {
      if (i < used_.size() && !used_[i]) continue;
      if (i > begin) visit(begin, i - begin);
      begin = i + 1;
    }
  }

  std::vector<bool> used_;
};

TEST(RangeAllocatorTest, RandomStepsEqualABitmap) {
  constexpr int kSteps = kHasSanitizer ? 30'000 : 120'000;
  constexpr uint64_t kLimitMax = 600;
  Random random(1);
  RangeAllocator ranges(64);
  BitmapModel model;
  model.grow(64);
  std::vector<std::pair<uint64_t, uint64_t>> live;
  for (int step = 0; step < kSteps; ++step) {
    // The steps mostly allocate for a while and then mostly free, so that both full and empty are
    // visited.
    const double allocate_chance = step / 500 % 2 == 0 ? 0.65 : 0.35;
    if (live.empty() || random.chance(allocate_chance)) {
      const uint64_t length = random.chance(0.9) ? random.between(1, 12) : random.between(1, 80);
      const std::optional<uint64_t> expected = model.best_fit(length);
      std::optional<uint64_t> offset = ranges.best_fit(length);
      ASSERT_EQ(offset, expected) << "step " << step;
      if (offset && random.chance(0.2)) {  // any part of that gap
        *offset += random.between(0, model.gap_at(*offset) - length);
        ranges.take(*offset, length);
      } else {
        ASSERT_EQ(ranges.allocate(length), expected) << "step " << step;
      }
      if (offset) {
        model.set(*offset, length, true);
        live.emplace_back(*offset, length);
      } else if (model.limit() < kLimitMax) {
        const uint64_t limit = model.limit() + random.between(0, 20);
        ranges.grow(limit);
        model.grow(limit);
      }
    } else {
      const size_t index = random.between(0, live.size() - 1);
      const auto [offset, length] = live[index];
      live[index] = live.back();
      live.pop_back();
      ranges.free(offset, length);
      model.set(offset, length, false);
    }
    if (HasFatalFailure()) return;
    if (step % 16 == 0) {
      ASSERT_TRUE(ranges.is_valid()) << "step " << step;
      ASSERT_EQ(ranges.used(), model.used());
      ASSERT_EQ(ranges.limit(), model.limit());
      ASSERT_EQ(ranges.largest_free(), model.largest_gap());
    }
  }
  for (const auto& [offset, length] : live) ranges.free(offset, length);
  EXPECT_TRUE(ranges.is_valid());
  EXPECT_EQ(ranges.used(), 0U);
  EXPECT_EQ(ranges.largest_free(), ranges.limit());
}

TEST(RangeAllocatorTest, OnlyWhatIsWhollyFreeIsTakenOut) {
  RangeAllocator ranges(0);
  const uint64_t first = ranges.grow_behind_border(8);
  const uint64_t second = ranges.grow_behind_border(8);
  const uint64_t used = ranges.allocate(2).value();
  EXPECT_FALSE(ranges.retire(used == first ? first : second, 8));
  EXPECT_TRUE(ranges.retire(used == first ? second : first, 8));
  EXPECT_FALSE(ranges.retire(used == first ? second : first, 8));
  EXPECT_TRUE(ranges.is_valid());
  EXPECT_EQ(ranges.largest_free(), 6u);
  EXPECT_EQ(ranges.allocate(8), std::nullopt);
  ranges.free(used, 2);
  EXPECT_TRUE(ranges.retire(used, 8));
  EXPECT_TRUE(ranges.is_valid());
}

}  // namespace
}  // namespace tencache
