// SPDX-License-Identifier: Apache-2.0
//
// The cache's frames under other sizes (memory/cpu_heap_cache.cpp, Note [Frames of another size]):
// when they are taken, what is left of whoever had them, and that bytes and books stay right.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "backend/machine.h"
#include "memory/cpu_heap.h"
#include "support/accessible.h"
#include "support/child_process.h"
#include "support/random.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBudget = 40 * kMiB;

/// Room is scarce above 70 % of kBudget.
TestEngine::Adjust small_budget() {
  return [](CpuEngineConfig& config) {
    config.budget_bytes = kBudget;
    config.arm_at = 0.7;
  };
}

/// Takes so much that nothing more fits without calling for attention.
char* fill_up(TestEngine& engine) {
  return engine.allocate(kBudget * 7 / 10 - engine->budget().used());
}

TEST(HeapCacheTest, WhileThereIsRoomNobodyTakesAnotherSizes) {
  TestEngine engine(small_budget());
  char* larger = engine.allocate(3 * kMiB);
  engine.free(larger);
  EXPECT_NE(engine.allocate(2 * kMiB), larger);
  EXPECT_EQ(engine->heap().cached_bytes(), 3 * kMiB);
}

TEST(HeapCacheTest, AllocationTakesTheFrontOfALargerOne) {
  TestEngine engine(small_budget());
  char* larger = engine.allocate(5 * kMiB);
  memset(larger, 1, 5 * kMiB);
  const Extent* extent = engine.extent(larger);
  const uint64_t id = extent->id;
  fill_up(engine);
  engine.free(larger);
  const uint64_t used = engine->budget().used();
  char* smaller = engine.allocate(3 * kMiB - 5);
  EXPECT_EQ(smaller, larger);
  EXPECT_EQ(engine.extent(smaller), extent);
  EXPECT_EQ(extent->bytes, 3 * kMiB);
  EXPECT_EQ(extent->requested_bytes, 3 * kMiB - 5);
  EXPECT_NE(extent->id, id);
  EXPECT_EQ(engine->budget().used(), used - 2 * kMiB);
  EXPECT_EQ(smaller[3 * kMiB - 1], 1) << "the pages are those that were there";
  EXPECT_FALSE(is_readable(larger + 3 * kMiB)) << "what is too much went back";
  EXPECT_EQ(engine->heap().find(larger + 4 * kMiB), nullptr);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(HeapCacheTest, TheSmallestThatIsLargeEnoughIsTaken) {
  TestEngine engine(small_budget());
  char* too_small = engine.allocate(2 * kMiB - kPageBytes);
  char* fits = engine.allocate(2 * kMiB + kPageBytes);
  char* larger = engine.allocate(3 * kMiB);
  char* too_large = engine.allocate(4 * kMiB);
  fill_up(engine);
  for (char* address : {too_small, fits, larger, too_large}) engine.free(address);
  EXPECT_EQ(engine.allocate(2 * kMiB), fits);
  EXPECT_EQ(engine.allocate(2 * kMiB), larger);
  // Half of it would be given back.
  EXPECT_NE(engine.allocate(2 * kMiB), too_large);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(HeapCacheTest, WhatAnOpStillPinsIsNotTaken) {
  TestEngine engine(small_budget());
  char* larger = engine.allocate(3 * kMiB);
  fill_up(engine);
  {
    const GateScope op(engine, {larger});
    engine.free(larger);
    EXPECT_NE(engine.allocate(2 * kMiB), larger);
  }
  EXPECT_EQ(engine.check_books(), "");
}

class FetchIntoFramesTest : public ::testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Bytes, FetchIntoFramesTest,
                         ::testing::Values(kPageBytes, 2 * kMiB, 3 * kMiB, 5 * kMiB + kPageBytes));

TEST_P(FetchIntoFramesTest, BytesComeBackAndTheOldAddressIsGone) {
  const uint64_t bytes = GetParam();
  for (const uint64_t more : {uint64_t{0}, bytes / 2 / kPageBytes * kPageBytes}) {
    TestEngine engine(small_budget());
    char* cold = engine.allocate(bytes);
    fill_pattern(cold, bytes, 1);
    ASSERT_TRUE(engine.evict(cold));
    cold[8] = 3;  // behind the gate's back: wins over the slot
    char* cached = engine.allocate(bytes + more);
    memset(cached, 9, bytes + more);
    fill_up(engine);
    engine.free(cached);
    const uint64_t used = engine->budget().used();
    engine.use({cold});
    EXPECT_TRUE(engine.is_resident(cold));
    EXPECT_EQ(engine->heap().cached_bytes(), 0u) << "its pages are the cold one's now";
    EXPECT_EQ(engine->budget().used(), used - more);
    EXPECT_FALSE(is_readable(cached));
    EXPECT_EQ(engine->heap().find(cached), nullptr);
    EXPECT_EQ(cold[8], 3);
    cold[8] = 0;
    const uint64_t expected = first_difference(cold, bytes, 1);
    EXPECT_TRUE(expected == bytes || expected == 8) << expected;
    EXPECT_EQ(engine.check_books(), "");
  }
}

TEST(HeapCacheTest, KernelThatCannotKeepTheSourceGetsFreshPages) {
  const int outcome = run_in_child([] {
    constexpr int kKeepSource = 4;  // MREMAP_DONTUNMAP
    if (!deny_syscall_when(SYS_mremap, EINVAL, 3, kKeepSource)) _exit(kSkipped);
    TestEngine engine(small_budget());
    EXPECT_FALSE(engine->arena().can_keep_source());
    char* cold = engine.allocate(kMiB);
    fill_pattern(cold, kMiB, 1);
    ASSERT_TRUE(engine.evict(cold));
    char* cached = engine.allocate(kMiB);
    fill_up(engine);
    engine.free(cached);
    engine.use({cold});
    EXPECT_TRUE(engine.is_resident(cold));
    EXPECT_TRUE(has_pattern(cold, kMiB, 1));
    EXPECT_EQ(engine.check_books(), "");
  });
  if (outcome == kSkipped) GTEST_SKIP() << "the kernel allows no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

// The program may have split a range's mapping, which the kernel then does not move.
TEST(HeapCacheTest, FramesThatCannotMoveAreCopied) {
  const int outcome = run_in_child([] {
    TestEngine engine(small_budget());
    char* cold = engine.allocate(3 * kMiB);
    fill_pattern(cold, 3 * kMiB, 1);
    ASSERT_TRUE(engine.evict(cold));
    char* cached = engine.allocate(3 * kMiB);
    fill_up(engine);
    engine.free(cached);
    constexpr int kKeepSource = 4;  // MREMAP_DONTUNMAP
    if (!deny_syscall_when(SYS_mremap, EFAULT, 3, kKeepSource)) _exit(kSkipped);
    engine.use({cold});
    EXPECT_TRUE(engine.is_resident(cold));
    EXPECT_TRUE(has_pattern(cold, 3 * kMiB, 1));
    EXPECT_EQ(engine->heap().cached_bytes(), 0u);
    EXPECT_EQ(engine.check_books(), "");
  });
  if (outcome == kSkipped) GTEST_SKIP() << "the kernel allows no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

uint64_t split_huge_pages() {
  std::ifstream file("/proc/vmstat");
  std::string name;
  uint64_t value = 0;
  while (file >> name >> value) {
    if (name == "thp_split_page") return value;
  }
  return 0;
}

// Else the kernel keeps the whole page, and counts it, until it is short of memory.
TEST(HeapCacheTest, HugePageThatIsCutIsSplit) {
  TestEngine engine(small_budget());
  char* larger = engine.allocate(4 * kMiB);
  memset(larger, 1, 4 * kMiB);
  fill_up(engine);
  engine.free(larger);
  const bool has_huge_pages = probe_memory().huge_pages != "never" && split_huge_pages() > 0;
  if (!has_huge_pages) GTEST_SKIP() << "no huge page was ever split here";
  const uint64_t before = split_huge_pages();
  ASSERT_EQ(engine.allocate(3 * kMiB), larger);
  EXPECT_GT(split_huge_pages(), before);
}

// All sizes, little room: whoever takes whose frames, each extent keeps its own bytes.
TEST(HeapCacheTest, EachKeepsItsOwnBytes) {
  Random random;
  TestEngine engine(small_budget());
  struct Block {
    char* address;
    uint64_t bytes;
    uint64_t seed;
  };
  std::vector<Block> blocks;
  for (uint64_t round = 1; round <= 2000; ++round) {
    const uint64_t draw = random.between(0, 3);
    if (draw == 0 && blocks.size() < 24) {
      const uint64_t bytes = random.between(1, 1000) * kPageBytes;
      blocks.push_back({engine.allocate(bytes), bytes, round});
      fill_pattern(blocks.back().address, bytes, round);
      engine.use({blocks.back().address}, AccessMode::kWrite);
    } else if (!blocks.empty()) {
      Block& block = blocks[random.between(0, blocks.size() - 1)];
      if (draw == 1) {
        engine.free(block.address);
        block = blocks.back();
        blocks.pop_back();
      } else if (draw == 2) {
        engine.evict(block.address);
      } else {
        const GateScope op(engine, {block.address});
        ASSERT_TRUE(has_pattern(block.address, block.bytes, block.seed)) << "round " << round;
      }
    }
  }
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
  EXPECT_EQ(engine.check_books(), "");
}

}  // namespace
}  // namespace tencache
