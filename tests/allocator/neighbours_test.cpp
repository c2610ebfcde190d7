// SPDX-License-Identifier: Apache-2.0
//
// Rows of neighbours: when a row begins, in which direction it goes, how far ahead it is fetched,
// and what ends it. One test has a program that reads everything once, in the order of allocation.
#include "engine/plan/neighbours.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "engine/plan/prefetcher.h"
#include "support/eventually.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 256 * kKiB;
constexpr size_t kCount = 64;
constexpr uint64_t kAheadBytes = 4 * kBytes;

class NeighboursTest : public ::testing::Test {
 protected:
  NeighboursTest(uint64_t budget_bytes, bool plans)
      : engine_([=](CpuEngineConfig& config) {
          config.budget_bytes = budget_bytes;
          config.plans = plans;
        }) {}

  TestEngine engine_;
  const std::vector<char*> tensors_ = engine_.written(kCount, kBytes);
};

/// Neighbours alone, over the parts of an engine that does nothing meanwhile. All tensors are cold.
class NeighbourRowTest : public NeighboursTest {
 protected:
  NeighbourRowTest()
      : NeighboursTest(32 * kAheadBytes, false), prefetcher_(heap(), *engine_->mover()) {
    parts_.heap = &heap();
    parts_.prefetcher = &prefetcher_;  // its worker does not run, so guesses stay
    parts_.evictor = &engine_->evictor();
    for (const char* tensor : tensors_) EXPECT_TRUE(engine_.evict(tensor));
  }

  Heap& heap() { return engine_->heap(); }
  Extent* extent(size_t index) { return engine_.extent(tensors_[index]); }
  void late(std::vector<size_t> places) {
    std::vector<Extent*> extents;
    for (const size_t place : places) extents.push_back(extent(place));
    neighbours_.on_late(extents);
  }
  void expect_ahead(uint64_t count) {
    EXPECT_EQ(prefetcher_.guessed_bytes(), count * kBytes);
    EXPECT_EQ(neighbours_.is_active(), count > 0);
  }

  Prefetcher prefetcher_;
  Parts parts_;
  Neighbours neighbours_{parts_};
};

TEST_F(NeighbourRowTest, ThreeInOneDirectionAreARow) {
  late({10});
  late({11});
  expect_ahead(0);
  late({12});
  expect_ahead(4);
}

TEST_F(NeighbourRowTest, ARowGoesBackwardsToo) {
  for (const size_t place : {40, 39, 37}) late({place});
  expect_ahead(4);
  engine_.use({tensors_[36], tensors_[35], tensors_[34], tensors_[33]});
  EXPECT_EQ(prefetcher_.guessed_bytes(), 0u) << "these were the four";
}

TEST_F(NeighbourRowTest, BackAndForthIsNoRow) {
  for (const size_t place : {10, 11, 10, 11, 10}) late({place});
  EXPECT_EQ(prefetcher_.guessed_bytes(), 0u);
}

TEST_F(NeighbourRowTest, WhatIsFarApartIsNoRow) {
  for (const size_t place : {0, 20, 40, 60, 10, 30, 50}) late({place});
  expect_ahead(0);
}

TEST_F(NeighbourRowTest, OneOpMayNameTheWholeRow) {
  late({5, 6, 7, 8});
  expect_ahead(4);
}

TEST_F(NeighbourRowTest, ARowEndsWithTheLastTensor) {
  for (const size_t place : {60, 61, 62}) late({place});
  expect_ahead(1);
  late({63});
  EXPECT_FALSE(neighbours_.is_active());
}

TEST_F(NeighbourRowTest, RowsTakeTurns) {
  for (size_t turn = 0; turn < 3; ++turn) {
    late({turn});
    late({50 - turn});
  }
  expect_ahead(8);
}

TEST_F(NeighbourRowTest, ARowThatDoesNotGoOnIsOver) {
  for (const size_t place : {10, 11, 12}) late({place});
  for (size_t place = 63; place > 32; --place) late({place});
  expect_ahead(8);
  late({32});
  expect_ahead(4);
}

TEST_F(NeighbourRowTest, WhatIsThereIsPassedOver) {
  engine_.use({tensors_[13], tensors_[15]});
  for (const size_t place : {10, 11, 12}) late({place});
  expect_ahead(4);
  engine_.use({tensors_[14], tensors_[16], tensors_[17], tensors_[18]});
  EXPECT_EQ(prefetcher_.guessed_bytes(), 0u) << "these were the four";
}

TEST_F(NeighbourRowTest, TheRowGoesOnWithWhatCameEarly) {
  for (const size_t place : {10, 11, 12}) late({place});
  neighbours_.on_early(extent(13));
  expect_ahead(4);
  neighbours_.on_early(extent(15));
  expect_ahead(4);
  neighbours_.on_early(extent(40));
  expect_ahead(4);
}

TEST_F(NeighbourRowTest, WhatComesNextIsGuessedAnewHalfway) {
  for (const size_t place : {10, 11, 12}) late({place});
  engine_.use({tensors_[13]});
  neighbours_.on_early(extent(13));
  expect_ahead(3);
  engine_.use({tensors_[14]});
  neighbours_.on_early(extent(14));
  expect_ahead(4);
}

TEST_F(NeighbourRowTest, FreedTensorsAreNotMeantAnyMore) {
  for (const size_t place : {10, 11, 12}) late({place});
  engine_.free(tensors_[13]);
  EXPECT_EQ(prefetcher_.guessed_bytes(), 3 * kBytes);
}

TEST_F(NeighbourRowTest, WhereThePlanKnowsNothingIsGuessed) {
  for (const size_t place : {10, 11, 12}) late({place});
  neighbours_.clear();
  EXPECT_EQ(prefetcher_.guessed_bytes(), 0u);
  EXPECT_FALSE(neighbours_.is_active());
  late({13});
  EXPECT_FALSE(neighbours_.is_active()) << "a row begins anew";
}

/// An engine whose budget holds half of the tensors.
class NeighbourReadsTest : public NeighboursTest {
 protected:
  NeighbourReadsTest() : NeighboursTest(kCount / 2 * kBytes, true) { engine_->evictor().arm(); }
};

// The program names each tensor once, as one that writes a checkpoint does. No op comes again.
TEST_F(NeighbourReadsTest, WhatIsReadOnceIsFetchedAhead) {
  uint32_t number = 100;
  EXPECT_TRUE(eventually([&] {
    for (size_t index = 0; index < kCount; ++index) {
      const GateScope op(engine_, {tensors_[index]}, AccessMode::kRead, number++);
      EXPECT_TRUE(has_pattern(tensors_[index], kBytes, index)) << index;
      // An op lasts this long, and other tensors can be fetched meanwhile.
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    return engine_.read(engine_.stats().early_fetches) > kCount / 4;
  }));
  EXPECT_EQ(engine_->learner()->summary().following.ticks_followed, 0u);
  EXPECT_EQ(engine_.read(engine_.stats().over_budget_events), 0u);
  EXPECT_EQ(engine_.check_books(), "");
}

/// An engine whose budget holds eight tensors.
class NeighbourRoomTest : public NeighboursTest {
 protected:
  NeighbourRoomTest() : NeighboursTest(8 * kBytes, true) { engine_->evictor().arm(); }
};

// The program may still write by address to what it has named.
TEST_F(NeighbourRoomTest, AGuessDrivesOutNothingThatWasNamedLately) {
  for (const size_t index : {20, 60, 30, 50, 40, 10, 11, 12}) engine_.use({tensors_[index]});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(engine_.is_cold(tensors_[13]));
  for (const size_t index : {30, 50, 40, 10, 11, 12}) {
    EXPECT_TRUE(engine_.is_resident(tensors_[index])) << index;
  }
  EXPECT_EQ(engine_.check_books(), "");
}

}  // namespace
}  // namespace tencache
