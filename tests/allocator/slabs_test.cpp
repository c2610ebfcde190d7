// SPDX-License-Identifier: Apache-2.0
//
// Slabs: blocks do not overlap, room in slabs is used before a new one is asked for, a slab ends
// with its last block, and nothing is cut from a cold one. Random steps run against a model.
#include "memory/slabs.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "support/heap_books.h"
#include "support/random.h"

namespace tencache {
namespace {

/// Slabs over extents that are only numbers: nobody touches their addresses.
class SlabsTest : public ::testing::Test {
 protected:
  Extent* new_extent() {
    Extent* extent = nullptr;
    if (ended_.empty()) {
      extent = &extents_.emplace_back();
      extent->address = reinterpret_cast<char*>(extents_.size() * kGranuleBytes);
      extent->bytes = Slabs::kSlabBytes;
    } else {
      extent = ended_.back();
      ended_.pop_back();
    }
    extent->commit();
    return extent;
  }
  /// A block that was cut.
  struct Block {
    char* address = nullptr;
    Extent* slab = nullptr;
  };
  Block allocate(uint64_t bytes) {
    std::optional<Allocation> cut = slabs_.cut(bytes);
    if (!cut) cut = slabs_.cut_from_new(new_extent(), bytes);
    return {static_cast<char*>(cut->address), cut->extent};
  }
  // Returns whether the slab ended.
  bool free(const Block& block) {
    if (!slabs_.free(block.slab, block.address)) return false;
    if (block.slab->state() == ExtentState::kCold) {
      EXPECT_EQ(block.slab->retire(), Retired::kVacant);
    } else {
      EXPECT_EQ(block.slab->retire(), Retired::kCached);
      EXPECT_TRUE(block.slab->claim_for_trim());
    }
    block.slab->become_vacant();
    ended_.push_back(block.slab);
    return true;
  }
  static void make_cold(Extent* extent) {
    extent->set_flags(kFlagSeen);
    ASSERT_TRUE(extent->claim_for_eviction() && extent->seal());
    extent->become_cold();
  }
  static void make_resident(Extent* extent) {
    ASSERT_TRUE(extent->claim_for_fetch());
    extent->begin_merge();
    extent->become_resident();
  }

  Slabs slabs_;
  std::deque<Extent> extents_;
  std::vector<Extent*> ended_;
};
using SlabsDeathTest = SlabsTest;

TEST_F(SlabsTest, BlocksFillASlabBeforeTheNextBegins) {
  std::set<char*> addresses;
  for (int count = 0; count < 32; ++count) addresses.insert(allocate(64 * kKiB).address);
  EXPECT_EQ(addresses.size(), 32u);
  EXPECT_EQ(HeapBooks::slab_count(slabs_), 1u);
  EXPECT_FALSE(slabs_.cut(Slabs::kBlockBytesMin).has_value());
  allocate(64 * kKiB);
  EXPECT_EQ(HeapBooks::slab_count(slabs_), 2u);
  EXPECT_TRUE(HeapBooks::are_valid(slabs_));
}

TEST_F(SlabsTest, BlocksAreWholePages) {
  const Block odd = allocate(33 * kKiB + 1);
  const Block next = allocate(32 * kKiB);
  EXPECT_EQ(next.address - odd.address, static_cast<ptrdiff_t>(36 * kKiB));
  EXPECT_TRUE(odd.slab->is_slab);
  EXPECT_TRUE(odd.slab->has(kFlagDirty)) << "a slot may hold the slab without the block";
}

TEST_F(SlabsTest, FreedBlocksServeAgainAndTheLastEndsTheSlab) {
  std::vector<Block> blocks;
  for (int count = 0; count < 4; ++count) blocks.push_back(allocate(512 * kKiB));
  EXPECT_FALSE(free(blocks[1]));
  EXPECT_EQ(allocate(256 * kKiB).address, blocks[1].address);
  const Block second = allocate(256 * kKiB);
  EXPECT_EQ(second.address, blocks[1].address + 256 * kKiB);
  EXPECT_FALSE(free(second));
  EXPECT_FALSE(free({blocks[1].address, second.slab}));
  EXPECT_FALSE(free(blocks[0]));
  EXPECT_FALSE(free(blocks[2]));
  EXPECT_TRUE(free(blocks[3]));
  EXPECT_EQ(HeapBooks::slab_count(slabs_), 0u);
  EXPECT_FALSE(blocks[3].slab->is_slab);
}

TEST_F(SlabsTest, NothingIsCutFromAColdSlab) {
  const Block cold = allocate(64 * kKiB);
  make_cold(cold.slab);
  const Block other = allocate(64 * kKiB);
  EXPECT_NE(other.slab, cold.slab);
  make_resident(cold.slab);
  for (int count = 0; count < 31; ++count) EXPECT_EQ(allocate(64 * kKiB).slab, other.slab);
  EXPECT_EQ(allocate(64 * kKiB).slab, cold.slab) << "resident again, it serves again";
  make_cold(cold.slab);
  EXPECT_FALSE(free(cold));
  EXPECT_TRUE(HeapBooks::are_valid(slabs_));
}

TEST_F(SlabsTest, AmongSlabsTheLeastRoomThatSufficesServes) {
  std::vector<Block> blocks;
  for (int count = 0; count < 8; ++count) blocks.push_back(allocate(512 * kKiB));
  free(blocks[0]);  // 1 MiB free in the first slab, 512 KiB in the second
  free(blocks[1]);
  free(blocks[5]);
  allocate(512 * kKiB);  // from the slab that was cut last
  const Block next = allocate(512 * kKiB);
  EXPECT_EQ(next.slab, blocks[0].slab);
}

TEST_F(SlabsDeathTest, WrongFreesAreNamed) {
  const Block block = allocate(64 * kKiB);
  EXPECT_DEATH(slabs_.free(block.slab, block.address + 64), "free of 0x");
  EXPECT_DEATH(slabs_.free(block.slab, block.address + 64 * kKiB), "free of 0x");
}

// The model knows for each page of each slab which block it belongs to.
TEST_F(SlabsTest, AtRandomAgainstAModel) {
  Random random;
  std::map<char*, std::pair<Block, uint64_t>> live;  // by address, with its pages
  std::map<Extent*, std::set<uint64_t>> pages;
  const auto free_one = [&] {
    auto victim = live.begin();
    std::advance(victim, random.between(0, live.size() - 1));
    const auto [block, count] = victim->second;
    auto& own = pages[block.slab];
    const auto first = static_cast<uint64_t>(block.address - block.slab->address) / kPageBytes;
    for (uint64_t page = first; page < first + count; ++page) own.erase(page);
    live.erase(victim);
    ASSERT_EQ(free(block), own.empty());
    if (own.empty()) pages.erase(block.slab);
  };
  for (int round = 0; round < 8000; ++round) {
    const uint64_t grows = (round / 1000) % 2 == 0 ? 70 : 30;
    if (live.empty() || random.between(1, 100) <= grows) {
      const uint64_t bytes = random.between(Slabs::kBlockBytesMin, Slabs::kBlockBytesMax);
      const Block block = allocate(bytes);
      ASSERT_EQ(block.slab->state(), ExtentState::kResident);
      const uint64_t count = (bytes + kPageBytes - 1) / kPageBytes;
      const auto first = static_cast<uint64_t>(block.address - block.slab->address) / kPageBytes;
      ASSERT_LE(first + count, Slabs::kSlabBytes / kPageBytes);
      for (uint64_t page = first; page < first + count; ++page) {
        ASSERT_TRUE(pages[block.slab].insert(page).second) << "page " << page << " twice";
      }
      live[block.address] = {block, count};
    } else {
      free_one();
    }
    if (!live.empty() && random.chance(0.05)) {
      Extent* const slab = live.begin()->second.first.slab;
      if (slab->state() == ExtentState::kCold) {
        make_resident(slab);
      } else {
        make_cold(slab);
      }
    }
    ASSERT_EQ(HeapBooks::slab_count(slabs_), pages.size());
    if (round % 50 == 0) {
      ASSERT_TRUE(HeapBooks::are_valid(slabs_));
    }
  }
  while (!live.empty()) free_one();
  EXPECT_EQ(HeapBooks::slab_count(slabs_), 0u);
}

}  // namespace
}  // namespace tencache
