// SPDX-License-Identifier: Apache-2.0
//
// BlockTable: the block of a request at the edges of each size, the smallest block that fits, when
// a block is split, joining neighbours in every order, and which segments are claimed. Random steps
// run against a model that knows only bytes, and check every invariant.
#include "memory/cuda/block_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <vector>

#include "support/random.h"

namespace tencache {
namespace {

constexpr CUdeviceptr kBase = CUdeviceptr{1} << 40;
constexpr StreamSet kOne = 1;
constexpr StreamSet kOther = 2;

auto whose_owner_is_not(StreamSet owner) {
  return [owner](const Segment& segment) { return (segment.owner & owner) == 0; };
}

class BlockTableTest : public ::testing::Test {
 protected:
  void add(uint64_t bytes, StreamSet owner = kOne) {
    table_.add_segment(next_, bytes, owner, bytes == kSmallSegmentBytes);
    next_ += bytes;
  }
  void drop(Block* block) {
    table_.retire(block);
    table_.release(block);
  }
  size_t free_count() const {
    size_t count = 0;
    for (const auto& [address, block] : table_.blocks()) {
      count += block->state == BlockState::kFree ? 1 : 0;
    }
    return count;
  }

  CUdeviceptr next_ = kBase;
  BlockTable table_;
};

TEST_F(BlockTableTest, RequestsAtTheEdgesOfTheSizes) {
  struct Edge {
    uint64_t bytes;
    uint64_t block_bytes;
    uint64_t segment_bytes;
  };
  for (const Edge& edge : {
           Edge{1, 512, 2 * kMiB},
           Edge{511, 512, 2 * kMiB},
           Edge{512, 512, 2 * kMiB},
           Edge{513, 1024, 2 * kMiB},
           Edge{kMiB - 1, kMiB, 2 * kMiB},
           Edge{kMiB, kMiB, 2 * kMiB},
           Edge{kMiB + 1, kMiB + 512, 20 * kMiB},
           Edge{10 * kMiB - 512, 10 * kMiB - 512, 20 * kMiB},
           Edge{10 * kMiB - 511, 10 * kMiB, 10 * kMiB},
           Edge{10 * kMiB, 10 * kMiB, 10 * kMiB},
           Edge{10 * kMiB + 1, 10 * kMiB + 512, 12 * kMiB},
           Edge{11 * kMiB, 11 * kMiB, 12 * kMiB},
           Edge{20 * kMiB - 511, 20 * kMiB, 20 * kMiB},
           Edge{20 * kMiB, 20 * kMiB, 20 * kMiB},
           Edge{20 * kMiB + 1, 20 * kMiB + 512, 22 * kMiB},
           Edge{22 * kMiB, 22 * kMiB, 22 * kMiB},
       }) {
    SCOPED_TRACE(edge.bytes);
    EXPECT_EQ(BlockTable::block_bytes(edge.bytes), edge.block_bytes);
    EXPECT_EQ(BlockTable::segment_bytes_for(edge.bytes, kLargeSegmentBytes), edge.segment_bytes);
    add(edge.segment_bytes);
    Block* const block = table_.take(edge.bytes, kOne);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(block->requested_bytes, edge.bytes);
    EXPECT_GE(block->bytes, edge.block_bytes);
    EXPECT_EQ(block->segment->is_small, edge.bytes <= kMiB);
    EXPECT_EQ(table_.active_bytes(), block->bytes);
    drop(block);
    EXPECT_EQ(table_.active_bytes(), 0u);
  }
}

TEST_F(BlockTableTest, WhereLargeSegmentsAreSmallerMoreRequestsHaveTheirOwn) {
  EXPECT_EQ(BlockTable::segment_bytes_for(kMiB, 4 * kMiB), 2 * kMiB);
  EXPECT_EQ(BlockTable::segment_bytes_for(kMiB + 1, 4 * kMiB), 4 * kMiB);
  EXPECT_EQ(BlockTable::segment_bytes_for(2 * kMiB - 512, 4 * kMiB), 4 * kMiB);
  EXPECT_EQ(BlockTable::segment_bytes_for(2 * kMiB, 4 * kMiB), 2 * kMiB);
  EXPECT_EQ(BlockTable::segment_bytes_for(9 * kMiB, 4 * kMiB), 10 * kMiB);
}

TEST_F(BlockTableTest, ASmallRemainderIsABlockAndALargeOneOnlyAbove1MiB) {
  add(kSmallSegmentBytes);
  ASSERT_NE(table_.take(kMiB, kOne), nullptr);
  Block* const small = table_.take(kMiB - 512, kOne);
  EXPECT_EQ(small->bytes, kMiB - 512);
  Block* const least = table_.take(512, kOne);
  ASSERT_NE(least, nullptr) << "512 bytes were left";
  EXPECT_EQ(least->address, kBase + 2 * kMiB - 512);
  EXPECT_EQ(table_.take(1, kOne), nullptr);

  add(kLargeSegmentBytes);
  Block* const whole = table_.take(19 * kMiB, kOne);
  EXPECT_EQ(whole->bytes, 20 * kMiB) << "1 MiB serves no large request";
  EXPECT_EQ(table_.take(kMiB + 1, kOne), nullptr);
  drop(whole);
  Block* const part = table_.take(19 * kMiB - 512, kOne);
  EXPECT_EQ(part->bytes, 19 * kMiB - 512);
  Block* const rest = table_.take(kMiB + 1, kOne);
  ASSERT_NE(rest, nullptr);
  EXPECT_EQ(rest->bytes, kMiB + 512);
}

TEST_F(BlockTableTest, TheSmallestThatFitsIsTaken) {
  add(kSmallSegmentBytes);
  std::vector<Block*> holes;
  for (const uint64_t bytes : {8192, 2048, 4096, 2048}) {
    holes.push_back(table_.take(bytes, kOne));
    ASSERT_NE(table_.take(512, kOne), nullptr) << "keeps the holes apart";
  }
  for (Block* hole : holes) drop(hole);
  EXPECT_EQ(table_.take(2048, kOne)->address, holes[1]->address) << "the lower of two";
  EXPECT_EQ(table_.take(2049, kOne)->address, holes[2]->address);
  EXPECT_EQ(table_.take(4097, kOne)->address, holes[0]->address);
}

TEST_F(BlockTableTest, NeighboursAreJoinedInEveryOrder) {
  std::array<size_t, 4> order = {0, 1, 2, 3};
  add(kSmallSegmentBytes);
  add(kSmallSegmentBytes);  // the next one by address, which is never joined
  do {
    std::vector<Block*> blocks;
    for (int count = 0; count < 4; ++count) blocks.push_back(table_.take(kMiB / 2, kOne));
    ASSERT_EQ(blocks[0]->segment, blocks[3]->segment);
    for (const size_t index : order) drop(blocks[index]);
    ASSERT_EQ(table_.blocks().size(), 2u) << "each segment is one block";
    ASSERT_EQ(free_count(), 2u);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(BlockTableTest, WhatWaitsIsNotJoinedUntilItIsReleased) {
  add(kSmallSegmentBytes);
  Block* const first = table_.take(kMiB, kOne);
  Block* const second = table_.take(kMiB, kOne);
  table_.retire(first);
  EXPECT_EQ(first->state, BlockState::kWaiting);
  EXPECT_EQ(table_.active_bytes(), kMiB);
  drop(second);
  EXPECT_EQ(table_.blocks().size(), 2u);
  EXPECT_EQ(table_.claim_whole(1, 0), nullptr);
  table_.release(first);
  EXPECT_EQ(table_.blocks().size(), 1u);
  EXPECT_NE(table_.claim_whole(1, 0), nullptr);
}

TEST_F(BlockTableTest, KindsAndOwnersAreApart) {
  add(kSmallSegmentBytes, kOne);
  add(kLargeSegmentBytes, kOther);
  EXPECT_EQ(table_.take(1, kOther), nullptr);
  EXPECT_EQ(table_.take(2 * kMiB, kOne), nullptr);
  EXPECT_NE(table_.take(1, kOne), nullptr);
  EXPECT_NE(table_.take(2 * kMiB, kOther), nullptr);
}

TEST_F(BlockTableTest, TheBlockOfAnyAddressIsFound) {
  EXPECT_EQ(table_.find(kBase), nullptr);
  add(kSmallSegmentBytes);
  Block* const block = table_.take(1000, kOne);
  EXPECT_EQ(table_.find(kBase), block);
  EXPECT_EQ(table_.find(kBase + 1023), block);
  EXPECT_EQ(table_.find(kBase + 1024)->state, BlockState::kFree);
  EXPECT_NE(table_.find(kBase + 2 * kMiB - 1), nullptr);
  EXPECT_EQ(table_.find(kBase + 2 * kMiB), nullptr);
  EXPECT_EQ(table_.find(kBase - 1), nullptr);
}

TEST_F(BlockTableTest, AStretchOfAFreeBlockIsTaken) {
  add(kSmallSegmentBytes);
  const CUdeviceptr middle = kBase + 1024;
  Block* const block = table_.take_at(middle, 2048, 2000);
  EXPECT_EQ(block->address, middle);
  EXPECT_EQ(block->bytes, 2048u);
  EXPECT_EQ(block->requested_bytes, 2000u);
  EXPECT_EQ(table_.active_bytes(), 2048u);
  EXPECT_EQ(free_count(), 2u);
  Block* const before = table_.take_at(kBase, 1024, 1024);
  Block* const behind = table_.take_at(middle + 2048, 2 * kMiB - 3072, kMiB);
  EXPECT_EQ(free_count(), 0u);
  EXPECT_DEATH(table_.take_at(kBase, 512, 512), "not free");
  for (Block* each : {block, before, behind}) drop(each);
  EXPECT_EQ(table_.blocks().size(), 1u);
  EXPECT_DEATH(table_.take_at(kBase + kMiB, 2 * kMiB, 1), "not free");
}

TEST_F(BlockTableTest, WholeSegmentsAreClaimedByAgeKindAndOwner) {
  for (int count = 0; count < 3; ++count) add(kSmallSegmentBytes, kOne);
  add(kLargeSegmentBytes, kOther);
  EXPECT_EQ(table_.claim_whole(1, kOne), nullptr);
  EXPECT_EQ(table_.claim_whole(21 * kMiB, 0), nullptr) << "too small";
  Block* const newest = table_.claim_whole(1, kOther);
  ASSERT_NE(newest, nullptr);
  EXPECT_EQ(newest->address, kBase + 4 * kMiB);
  const std::vector<Block*> oldest = table_.claim_oldest(3 * kMiB, whose_owner_is_not(0));
  ASSERT_EQ(oldest.size(), 2u);
  EXPECT_EQ(oldest[0]->address, kBase);
  EXPECT_EQ(oldest[1]->address, kBase + 2 * kMiB);
  for (Block* block : oldest) table_.remove_segment(block);
  EXPECT_EQ(table_.segment_bytes(), 22 * kMiB);
  EXPECT_TRUE(table_.claim_oldest(kGiB, whose_owner_is_not(kOther)).empty());
  // The claimed segment goes to the other owner.
  table_.change_owner(newest, kOther);
  table_.release(newest);
  EXPECT_EQ(table_.take(1, kOne), nullptr);
  EXPECT_NE(table_.take(1, kOther), nullptr);
}

// Compares the running figures with those of a walk.
void expect_figures(BlockTable& table, bool is_small) {
  BlockFigures counted;
  for (const auto& [address, block] : table.blocks()) {
    if (block->segment->is_small != is_small) continue;
    const bool is_whole = block->bytes == block->segment->bytes;
    const bool begins_segment = block->segment->address == address;
    counted.segment_bytes += begins_segment ? block->segment->bytes : 0;
    if (block->state == BlockState::kActive) {
      counted.active_bytes += block->bytes;
    } else if (block->state == BlockState::kFree && !is_whole) {
      counted.split_bytes += block->bytes;
      counted.split_count += 1;
    }
  }
  const BlockFigures& figures = table.figures(is_small);
  ASSERT_EQ(figures.segment_bytes, counted.segment_bytes);
  ASSERT_EQ(figures.active_bytes, counted.active_bytes);
  ASSERT_EQ(figures.split_bytes, counted.split_bytes);
  ASSERT_EQ(figures.split_count, counted.split_count);
}

// Checks every invariant of the header, over all blocks.
void expect_valid(BlockTable& table) {
  CUdeviceptr end = 0;
  const Block* before = nullptr;
  uint64_t active_bytes = 0;
  uint64_t segment_bytes = 0;
  for (const auto& [address, block] : table.blocks()) {
    ASSERT_EQ(block->address, address);
    ASSERT_GT(block->bytes, 0u);
    ASSERT_EQ(block->bytes % kBlockUnitBytes, 0u);
    const bool begins_segment = block->segment->address == address;
    if (begins_segment) {
      ASSERT_TRUE(before == nullptr || end == before->segment->address + before->segment->bytes);
      segment_bytes += block->segment->bytes;
    } else {
      ASSERT_EQ(address, end) << "a gap or an overlap";
      ASSERT_EQ(block->segment, before->segment);
      ASSERT_FALSE(block->state == BlockState::kFree && before->state == BlockState::kFree);
    }
    end = address + block->bytes;
    before = block;
    if (block->state == BlockState::kActive) active_bytes += block->bytes;
  }
  ASSERT_EQ(table.active_bytes(), active_bytes);
  ASSERT_EQ(table.segment_bytes(), segment_bytes);
  for (const bool is_small : {false, true}) expect_figures(table, is_small);
}

// Takes any stretch of a random block, if that is free.
void take_stretch(BlockTable& table, Random& random, std::vector<Block*>* active) {
  if (table.blocks().empty()) return;
  const auto index = static_cast<std::ptrdiff_t>(random.between(0, table.blocks().size() - 1));
  const Block* const free = std::next(table.blocks().begin(), index)->second;
  if (free->state != BlockState::kFree) return;
  const uint64_t units = free->bytes / kBlockUnitBytes;
  const uint64_t skipped = random.between(0, units - 1);
  const uint64_t taken = random.between(1, units - skipped);
  const CUdeviceptr address = free->address + skipped * kBlockUnitBytes;
  Block* const block = table.take_at(address, taken * kBlockUnitBytes, taken);
  ASSERT_EQ(block->address, address);
  ASSERT_EQ(block->bytes, taken * kBlockUnitBytes);
  active->push_back(block);
}

TEST_F(BlockTableTest, RandomStepsKeepEveryInvariant) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    BlockTable table;
    Random random(seed);
    CUdeviceptr next = kBase;
    std::vector<Block*> active;
    std::vector<Block*> waiting;
    const auto remove_one = [&random](std::vector<Block*>& blocks) {
      const size_t index = random.between(0, blocks.size() - 1);
      std::swap(blocks[index], blocks.back());
      Block* const block = blocks.back();
      blocks.pop_back();
      return block;
    };
    for (int step = 0; step < 10'000; ++step) {
      const StreamSet owner = StreamSet{1} << random.between(0, 2);
      const uint64_t bytes =
          random.chance(0.8) ? random.between(1, kMiB) : random.between(1, 25 * kMiB);
      if (random.chance(0.45)) {
        Block* block = table.take(bytes, owner);
        if (block == nullptr) {
          const uint64_t segment_bytes = BlockTable::segment_bytes_for(bytes, kLargeSegmentBytes);
          table.add_segment(next, segment_bytes, owner, BlockTable::is_small(bytes));
          // Some segments are neighbours.
          next += segment_bytes + (random.chance(0.5) ? 2 * kMiB : 0);
          block = table.take(bytes, owner);
        }
        ASSERT_NE(block, nullptr);
        ASSERT_EQ(block->segment->owner, owner);
        ASSERT_GE(block->bytes, bytes);
        active.push_back(block);
      } else if (random.chance(0.6) && !active.empty()) {
        waiting.push_back(remove_one(active));
        table.retire(waiting.back());
      } else if (!waiting.empty()) {
        table.release(remove_one(waiting));
      }
      if (random.chance(0.01)) {
        const uint64_t bytes = random.between(1, 50 * kMiB);
        for (Block* block : table.claim_oldest(bytes, whose_owner_is_not(owner))) {
          ASSERT_NE(block->segment->owner, owner);
          table.remove_segment(block);
        }
      }
      if (random.chance(0.05)) take_stretch(table, random, &active);
      if (step % 50 == 0) expect_valid(table);
    }
    for (Block* block : active) table.retire(block);
    for (Block* block : active) table.release(block);
    for (Block* block : waiting) table.release(block);
    expect_valid(table);
    for (Block* block : table.claim_oldest(~uint64_t{0}, whose_owner_is_not(0))) {
      table.remove_segment(block);
    }
    EXPECT_TRUE(table.blocks().empty()) << "a segment was not one block again";
    EXPECT_EQ(table.segment_bytes(), 0u);
  }
}

}  // namespace
}  // namespace tencache
