// SPDX-License-Identifier: Apache-2.0
//
// Requests that are cut from freed memory where it is (memory/cpu_heap_cuts.cpp): what is taken,
// what stays cached, the padding that this needs and when it goes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/sanitizers.h"
#include "memory/cpu_heap.h"
#include "support/accessible.h"
#include "support/random.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

class HeapCutsTest : public ::testing::Test {
 protected:
  ~HeapCutsTest() override { EXPECT_EQ(engine_.check_books(), ""); }

  /// Extents of these sizes, neighbours in this order, each full of its number from 1 on.
  std::vector<char*> neighbours(std::initializer_list<uint64_t> sizes) {
    std::vector<char*> all;
    for (const uint64_t bytes : sizes) {
      all.push_back(engine_.allocate(bytes));
      memset(all.back(), static_cast<int>(all.size()), bytes);
      const char* const before = all.size() > 1 ? all[all.size() - 2] : nullptr;
      if (before != nullptr) {
        EXPECT_EQ(all.back(), before + engine_.extent(before)->bytes);
      }
    }
    return all;
  }
  uint64_t used() { return engine_->budget().used(); }
  uint64_t cached() { return engine_->heap().cached_bytes(); }
  uint64_t padding(const char* address) { return engine_.extent(address)->padding_bytes; }

  TestEngine engine_;
};

TEST_F(HeapCutsTest, TheFrontIsTakenAndTheRestStaysCached) {
  char* whole = neighbours({20 * kMiB})[0];
  engine_.free(whole);
  char* front = engine_.allocate(3 * kMiB - 5);
  EXPECT_EQ(front, whole) << "its pages did not move";
  EXPECT_EQ(front[0], 1);
  EXPECT_EQ(engine_.extent(front)->bytes, 3 * kMiB);
  EXPECT_EQ(engine_.extent(front)->requested_bytes, 3 * kMiB - 5);
  EXPECT_EQ(padding(front), kMiB);
  EXPECT_EQ(used(), 20 * kMiB);
  EXPECT_EQ(cached(), 17 * kMiB) << "the rest and the padding";
  EXPECT_EQ(engine_.read(engine_.stats().peak_live_bytes), 20 * kMiB);
  char* rest = engine_.allocate(16 * kMiB);
  EXPECT_EQ(rest, whole + 4 * kMiB) << "what is left serves as it is";
  EXPECT_EQ(rest[16 * kMiB - 1], 1);
  EXPECT_EQ(used(), 20 * kMiB);
}

TEST_F(HeapCutsTest, NeighboursServeALargerOne) {
  const std::vector<char*> parts = neighbours({2 * kMiB, 4 * kMiB, 4 * kMiB});
  for (char* part : parts) engine_.free(part);
  const uint64_t count = engine_->heap().extent_count();
  char* joined = engine_.allocate(8 * kMiB);
  EXPECT_EQ(joined, parts[0]);
  EXPECT_EQ(joined[0], 1);
  EXPECT_EQ(joined[2 * kMiB], 2);
  EXPECT_EQ(joined[8 * kMiB - 1], 3);
  EXPECT_EQ(engine_.extent(joined)->mapping_count, 3u);
  EXPECT_EQ(engine_->heap().find(joined + 8 * kMiB - 1), engine_.extent(joined));
  EXPECT_EQ(engine_->heap().extent_count(), count - 1);
  EXPECT_EQ(used(), 10 * kMiB);
  EXPECT_EQ(cached(), 2 * kMiB);
}

TEST_F(HeapCutsTest, TheTightestRunServes) {
  const std::vector<char*> parts = neighbours({8 * kMiB, 2 * kMiB, 4 * kMiB, 2 * kMiB, 6 * kMiB});
  for (const size_t index : {0, 2, 4}) engine_.free(parts[index]);
  EXPECT_EQ(engine_.allocate(4 * kMiB - 1), parts[2]);
  EXPECT_EQ(engine_.allocate(4 * kMiB - 2), parts[4]);
  EXPECT_EQ(engine_.allocate(4 * kMiB - 3), parts[0]);
}

TEST_F(HeapCutsTest, AnotherSizeOfTheSameGranulesTakesItsPlace) {
  const std::vector<char*> parts = neighbours({4 * kMiB, 20 * kMiB});
  engine_.free(parts[1]);
  engine_.free(parts[0]);
  char* shorter = engine_.allocate(3 * kMiB);
  EXPECT_EQ(shorter, parts[0]);
  engine_.free(shorter);
  EXPECT_EQ(engine_.allocate(3 * kMiB), shorter) << "its own size";
  EXPECT_EQ(padding(shorter), kMiB) << "which it kept";
  engine_.free(shorter);
  char* longer = engine_.allocate(4 * kMiB - kPageBytes);
  EXPECT_EQ(longer, shorter);
  EXPECT_EQ(padding(longer), kPageBytes);
  EXPECT_EQ(used(), 24 * kMiB);
}

TEST_F(HeapCutsTest, NewMemoryGetsPaddingOnlyBelowThePeak) {
  char* first = engine_.allocate(3 * kMiB);
  EXPECT_EQ(padding(first), 0u);
  EXPECT_EQ(used(), 3 * kMiB);
  engine_.free(engine_.allocate(32 * kMiB));
  engine_->heap().empty_cache();
  char* second = engine_.allocate(3 * kMiB);
  EXPECT_EQ(padding(second), kMiB);
  memset(second, 1, 4 * kMiB);
  EXPECT_EQ(used(), 7 * kMiB);
  EXPECT_EQ(engine_->heap().live_bytes(), 6 * kMiB);
}

TEST_F(HeapCutsTest, PaddingGoesWhereRoomIsNeeded) {
  engine_.free(neighbours({20 * kMiB})[0]);
  char* extent = engine_.allocate(3 * kMiB);
  EXPECT_EQ(engine_->heap().drop_cached(16 * kMiB), 16 * kMiB) << "the cache goes first";
  EXPECT_EQ(padding(extent), kMiB);
  EXPECT_EQ(engine_->heap().drop_cached(kMiB), kMiB);
  EXPECT_EQ(padding(extent), 0u);
  EXPECT_EQ(used(), 3 * kMiB);
  EXPECT_EQ(cached(), 0u);
  EXPECT_EQ(extent[3 * kMiB - 1], 1);
  EXPECT_FALSE(is_readable(extent + 3 * kMiB));
  EXPECT_EQ(engine_->heap().drop_cached(kMiB), 0u);
}

TEST_F(HeapCutsTest, WhatLeavesHasNone) {
  engine_.free(neighbours({20 * kMiB})[0]);
  char* extent = engine_.allocate(3 * kMiB);
  fill_pattern(extent, 3 * kMiB, 7);
  ASSERT_TRUE(engine_.evict(extent));
  EXPECT_EQ(padding(extent), 0u);
  EXPECT_EQ(used(), 16 * kMiB);
  EXPECT_EQ(engine_.device().disk()->used_bytes(), 3 * kMiB);
  engine_.use({extent});
  EXPECT_TRUE(has_pattern(extent, 3 * kMiB, 7));
  EXPECT_EQ(engine_->heap().live_bytes(), 3 * kMiB);
}

TEST_F(HeapCutsTest, WhatAnOpStillPinsIsNotCut) {
  char* whole = neighbours({20 * kMiB})[0];
  {
    const GateScope op(engine_, {whole});
    engine_.free(whole);
    EXPECT_NE(engine_.allocate(2 * kMiB), whole);
    EXPECT_EQ(engine_.check_books(), "");
  }
  EXPECT_EQ(engine_.allocate(4 * kMiB), whole);
}

// The sizes vary. What is held stays near the live peak, and each extent keeps its bytes.
TEST_F(HeapCutsTest, AtRandomEachKeepsItsOwnBytes) {
  Random random;
  struct Block {
    char* address;
    uint64_t bytes;
    uint64_t seed;
  };
  std::vector<Block> blocks;
  uint64_t live = 0;
  uint64_t live_peak = 0;
  for (uint64_t round = 1; round <= (kHasSanitizer ? 600u : 3000u); ++round) {
    const uint64_t draw = random.between(0, 9);
    if (blocks.empty() || (draw < 5 && blocks.size() < 24)) {
      const uint64_t bytes = random.between(1, 2500) * kPageBytes;
      blocks.push_back({engine_.allocate(bytes), bytes, round});
      fill_pattern(blocks.back().address, bytes, round);
      live += bytes;
      live_peak = std::max(live_peak, live);
      continue;
    }
    Block& block = blocks[random.between(0, blocks.size() - 1)];
    if (draw == 8) {
      engine_.evict(block.address);
    } else if (draw == 9) {
      engine_->heap().drop_cached(random.between(1, 8) * kMiB);
    } else {
      engine_.use({block.address});
      ASSERT_TRUE(has_pattern(block.address, block.bytes, block.seed)) << "round " << round;
      engine_.free(block.address);
      live -= block.bytes;
      block = blocks.back();
      blocks.pop_back();
    }
    if (round % 64 == 0) {
      ASSERT_EQ(engine_.check_books(), "") << "round " << round;
    }
  }
  EXPECT_LE(engine_.read(engine_.stats().peak_device_bytes),
            live_peak + live_peak / CpuHeap::kSlackShare);
}

// A step of a network: activations of many sizes, then their gradients, while the activations go.
// What one step gives back the next one finds again, so the kernel clears no page.
TEST_F(HeapCutsTest, AStepThatRepeatsGetsNoNewPages) {
  uint64_t fresh_count = 0;
  const auto allocate = [&](uint64_t pages) {
    char* const address = engine_.allocate(pages * kPageBytes);
    fresh_count += address[0] == 0;
    memset(address, 1, pages * kPageBytes);
    return address;
  };
  for (int step = 0; step < 20; ++step) {
    if (step == 10) fresh_count = 0;
    std::vector<char*> activations;
    for (uint64_t layer = 0; layer < 12; ++layer) {
      activations.push_back(allocate(1500 / (layer / 3 + 1) + 7 * layer));
      char* const workspace = allocate(260 + 91 * layer);
      activations.push_back(allocate(1500 / (layer / 3 + 1) + 7 * layer));
      engine_.free(workspace);
    }
    char* gradient = allocate(300);
    while (!activations.empty()) {
      const uint64_t pages = engine_.extent(activations.back())->requested_bytes / kPageBytes;
      char* const next = allocate(pages);
      char* const workspace = allocate(pages / 2 + 270);
      engine_.free(gradient);
      engine_.free(activations.back());
      engine_.free(workspace);
      activations.pop_back();
      gradient = next;
    }
    engine_.free(gradient);
  }
  EXPECT_EQ(fresh_count, 0u);
}

}  // namespace
}  // namespace tencache
