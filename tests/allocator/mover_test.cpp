// SPDX-License-Identifier: Apache-2.0
//
// How the base class of the movers carries out requests to evict: in parts. What each backend does
// is in slot_mover_test.cpp and cuda/.
#include "engine/move/mover.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/stats.h"
#include "memory/budget.h"

namespace tencache {
namespace {

/// A mover that notes what is to leave together.
class PartsMover final : public Mover {
 public:
  PartsMover(Stats& stats, const Budget& budget) : Mover(stats, budget) {}

  EvictionResult evict(std::span<Extent* const> extents) override {
    parts.emplace_back(extents.begin(), extents.end());
    if (during_write) during_write();
    return {.count = extents.size(), .bytes = 0, .failure = {}};
  }
  void fetch(std::span<Extent* const> /*extents*/, StreamSet /*streams*/,
             OpWait* /*wait*/) override {}
  uint64_t prefetch(RequestSource& /*requests*/) override { return 0; }

  std::vector<std::vector<Extent*>> parts;
  std::function<void()> during_write;
};

class MoverTest : public ::testing::Test {
 protected:
  using Parts = std::vector<std::vector<Extent*>>;

  /// Requests for one extent of each size.
  std::vector<MoveRequest> requests(std::initializer_list<uint64_t> sizes) {
    std::vector<MoveRequest> made;
    for (const uint64_t bytes : sizes) {
      Extent* extent = &extents_.at(made.size());
      extent->bytes = bytes;
      made.push_back({extent, 0, bytes, timestamp()});
    }
    return made;
  }
  void evict(const std::vector<MoveRequest>& requests) {
    ListedEvictions listed(requests);
    mover_.evict_requested(listed);
    size_t count = 0;
    for (const std::vector<Extent*>& part : mover_.parts) count += part.size();
    EXPECT_EQ(listed.total().count, count) << "each part is told";
  }
  Extent* extent(size_t number) { return &extents_.at(number); }

  Stats stats_;
  Budget budget_{kGiB, kGiB, stats_.peak_device_bytes};
  PartsMover mover_{stats_, budget_};
  std::array<Extent, 6> extents_;
};

constexpr uint64_t kHalf = kBytesAtOnceMax / 2;

TEST_F(MoverTest, APartIsNoLargerThanBytesAtOnceUnlessItIsOneExtent) {
  evict(requests({kHalf, kHalf, kHalf, kBytesAtOnceMax, 3 * kBytesAtOnceMax, kPageBytes}));
  EXPECT_EQ(mover_.parts,
            (Parts{{extent(0), extent(1)}, {extent(2)}, {extent(3)}, {extent(4)}, {extent(5)}}));
}

TEST_F(MoverTest, WhatNeedsNoWriteGoesFirstAndWaitsForNoWrite) {
  const std::vector<MoveRequest> evictions = requests({kPageBytes, kPageBytes, kPageBytes});
  extent(1)->has_copy_below = true;
  evict(evictions);
  EXPECT_EQ(mover_.parts, (Parts{{extent(1)}, {extent(0), extent(2)}}));
}

TEST_F(MoverTest, WhatIsUsedDuringThePartBeforeItStays) {
  const std::vector<MoveRequest> evictions = requests({kBytesAtOnceMax, kPageBytes, kPageBytes});
  mover_.during_write = [this] { extent(1)->last_use_at = timestamp(); };
  evict(evictions);
  EXPECT_EQ(mover_.parts, (Parts{{extent(0)}, {extent(2)}}));
}

TEST_F(MoverTest, WhatIsAnotherExtentByNowStays) {
  const std::vector<MoveRequest> evictions = requests({kPageBytes, kPageBytes});
  extent(0)->id = 1;
  evict(evictions);
  EXPECT_EQ(mover_.parts, (Parts{{extent(1)}}));
}

}  // namespace
}  // namespace tencache
