// SPDX-License-Identifier: Apache-2.0
//
// Pages of freed extents at other addresses (memory/cpu_heap_frames.cpp): when they are taken, what
// is left of the extent that had them, that bytes and books stay right, and what happens where the
// kernel refuses to move them.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/sanitizers.h"
#include "memory/cpu_heap.h"
#include "support/accessible.h"
#include "support/child_process.h"
#include "support/random.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBudget = 160 * kMiB;

/// An adjustment that sets the budget. Room is scarce above 70 % of it.
TestEngine::Adjust small_budget(uint64_t bytes = kBudget) {
  return [bytes](CpuEngineConfig& config) {
    config.budget_bytes = bytes;
    config.arm_at = 0.7;
  };
}

/// Takes all of which there is plenty, so no extent gets padding (memory/cpu_heap_cuts.cpp).
void take_plenty(TestEngine& engine) { engine.allocate(kBudget / 8 * 5); }

/// Takes so much that nothing more fits without calling for attention.
char* fill_up(TestEngine& engine) {
  return engine.allocate(kBudget * 7 / 10 - engine->budget().used());
}

TEST(HeapCacheTest, PagesServeAnotherSizeWhereThereIsRoomToo) {
  TestEngine engine;
  char* larger = engine.allocate(3 * kMiB);
  memset(larger, 1, 3 * kMiB);
  engine.free(larger);
  const char* smaller = engine.allocate(2 * kMiB);
  EXPECT_EQ(smaller[0], 1);
  EXPECT_EQ(engine->heap().cached_bytes(), kMiB);
  EXPECT_EQ(engine->budget().used(), 3 * kMiB);
}

// Every size is new, and no more is ever in use than the program has at once.
TEST(HeapCacheTest, GrowingSizesTakeNoMoreThanIsLive) {
  TestEngine engine;
  uint64_t bytes = kMiB;
  char* newest = engine.allocate(bytes);
  uint64_t live_peak = 0;
  for (int round = 0; round < 200; ++round) {
    const uint64_t more = bytes + 37 * kPageBytes;
    char* next = engine.allocate(more);
    live_peak = bytes + more;
    engine.free(newest);
    newest = next;
    bytes = more;
  }
  EXPECT_EQ(engine.read(engine.stats().peak_live_bytes), live_peak);
  EXPECT_LE(engine.read(engine.stats().peak_device_bytes),
            live_peak + live_peak / CpuHeap::kSlackShare);
  EXPECT_FALSE(engine->evictor().is_armed());
  EXPECT_EQ(engine.check_books(), "");
}

TEST(HeapCacheTest, AllocationTakesPagesOfALargerOneAndLeavesTheRest) {
  TestEngine engine(small_budget());
  take_plenty(engine);
  char* larger = engine.allocate(5 * kMiB);
  memset(larger, 1, 5 * kMiB);
  fill_up(engine);
  engine.free(larger);
  const uint64_t used = engine->budget().used();
  char* smaller = engine.allocate(3 * kMiB - 5);
  EXPECT_EQ(engine.extent(smaller)->bytes, 3 * kMiB);
  EXPECT_EQ(engine.extent(smaller)->requested_bytes, 3 * kMiB - 5);
  for (uint64_t offset = 0; offset < 3 * kMiB; offset += kPageBytes) {
    ASSERT_EQ(smaller[offset], 1) << "the pages are those that were there";
  }
  EXPECT_EQ(engine->budget().used(), used) << "their room came along";
  EXPECT_EQ(engine->heap().cached_bytes(), 2 * kMiB);
  EXPECT_FALSE(is_readable(larger)) << "its first granule went";
  EXPECT_FALSE(is_readable(larger + 4 * kMiB)) << "and its tail";
  EXPECT_EQ(engine->heap().find(larger), nullptr);
  EXPECT_EQ(engine->heap().find(larger + 4 * kMiB), nullptr);
  EXPECT_EQ(engine.allocate(2 * kMiB), larger + 2 * kMiB) << "what is left serves, too";
  EXPECT_EQ(larger[2 * kMiB], 1);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(HeapCacheTest, SeveralServeALargerOne) {
  TestEngine engine(small_budget());
  take_plenty(engine);
  std::vector<char*> donors;
  for (int index = 0; index < 3; ++index) {
    donors.push_back(engine.allocate(3 * kMiB));
    memset(donors.back(), index + 1, 3 * kMiB);
  }
  fill_up(engine);
  for (char* donor : donors) engine.free(donor);
  const uint64_t used = engine->budget().used();
  char* large = engine.allocate(5 * kMiB);
  // The oldest donor gives its granules first, and the tail, too.
  EXPECT_EQ(large[0], 1);
  EXPECT_EQ(large[2 * kMiB], 2);
  EXPECT_EQ(large[5 * kMiB - 1], 1);
  EXPECT_EQ(engine->budget().used(), used);
  EXPECT_EQ(engine->heap().cached_bytes(), 4 * kMiB);
  EXPECT_EQ(engine.extent(large)->mapping_count, 3u);
  EXPECT_EQ(engine.check_books(), "");
  // An extent of several mappings leaves, comes back, and gives its pages in turn.
  fill_pattern(large, 5 * kMiB, 7);
  ASSERT_TRUE(engine.evict(large));
  EXPECT_EQ(engine.extent(large)->mapping_count, 1u);
  engine.use({large});
  EXPECT_TRUE(has_pattern(large, 5 * kMiB, 7));
  EXPECT_EQ(engine.check_books(), "");
}

TEST(HeapCacheTest, ATailThatIsTooShortIsNotTaken) {
  TestEngine engine(small_budget());
  take_plenty(engine);
  char* shorter = engine.allocate(3 * kMiB);
  char* longer = engine.allocate(kMiB + kMiB / 2);
  memset(shorter, 1, 3 * kMiB);
  memset(longer, 2, kMiB + kMiB / 2);
  fill_up(engine);
  engine.free(shorter);
  engine.free(longer);
  char* taker = engine.allocate(3 * kMiB + kPageBytes);
  EXPECT_EQ(taker[0], 1);
  EXPECT_EQ(taker[2 * kMiB], 2) << "the end of the longer tail";
  EXPECT_EQ(engine->heap().cached_bytes(), kMiB + kMiB / 2 - kPageBytes);
  EXPECT_EQ(engine.check_books(), "");
}

// The next step asks for the same sizes again. If a request broke up an extent of one of these
// sizes for its tail, the next request for that size would break up another.
TEST(HeapCacheTest, SizesInUseKeepTheirTailsWhileThereIsRoom) {
  TestEngine engine;
  engine.free(engine.allocate(64 * kMiB));  // the oldest donor, which has no tail
  const std::vector<uint64_t> sizes = {3 * kMiB, 5 * kMiB + kPageBytes, 7 * kMiB / 2};
  std::vector<char*> blocks;
  for (const uint64_t bytes : sizes) blocks.push_back(engine.allocate(bytes));
  for (char* block : blocks) engine.free(block);
  char* other = engine.allocate(2 * kMiB + kMiB / 2);
  for (size_t index = 0; index < sizes.size(); ++index) {
    EXPECT_EQ(engine.allocate(sizes[index]), blocks[index]) << sizes[index];
  }
  engine.free(other);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(HeapCacheTest, WhatIsNotFoundIsTakenFromTheBudget) {
  TestEngine engine(small_budget());
  char* donor = engine.allocate(2 * kMiB);
  fill_up(engine);
  engine.free(donor);
  const uint64_t used = engine->budget().used();
  engine.allocate(7 * kMiB);
  EXPECT_EQ(engine->budget().used(), used + 5 * kMiB);
  EXPECT_EQ(engine->heap().cached_bytes(), 0u);
  EXPECT_EQ(engine.check_books(), "");
}

// The kernel gives what no donor has, and the cache makes way for it.
TEST(HeapCacheTest, AFetchKeepsTheCacheWithinItsBound) {
  TestEngine engine;
  char* cold = engine.allocate(kMiB);
  fill_pattern(cold, kMiB, 7);
  ASSERT_TRUE(engine.evict(cold));
  engine.free(engine.allocate(10 * kMiB));
  EXPECT_EQ(engine->heap().cached_bytes(), 10 * kMiB) << "it has no tail to give";
  engine.use({cold});
  EXPECT_TRUE(has_pattern(cold, kMiB, 7));
  EXPECT_EQ(engine->heap().live_bytes(), kMiB);
  EXPECT_LE(engine.read(engine.stats().peak_device_bytes),
            10 * kMiB + 10 * kMiB / CpuHeap::kSlackShare);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(HeapCacheTest, MappingsAreLimited) {
  TestEngine engine([](CpuEngineConfig& config) {
    small_budget()(config);
    config.heap.extent_count_max = 3;
  });
  take_plenty(engine);
  char* donor = engine.allocate(kMiB);
  memset(donor, 1, kMiB);
  engine.free(donor);
  // The third extent reaches the limit: from here on pages stay where they are.
  const char* third = engine.allocate(kMiB / 2);
  EXPECT_EQ(third[0], 0);
  EXPECT_EQ(engine->heap().cached_bytes(), kMiB);
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
  // This much more stays cached where the other extent's tail is shorter.
  const uint64_t tail = bytes % kGranuleBytes;
  for (const uint64_t more : {uint64_t{0}, bytes / 2 / kPageBytes * kPageBytes}) {
    TestEngine engine(small_budget());
    take_plenty(engine);
    char* cold = engine.allocate(bytes);
    fill_pattern(cold, bytes, 1);
    ASSERT_TRUE(engine.evict(cold));
    cold[8] = 3;  // an unannounced write, which wins over the slot
    char* cached = engine.allocate(bytes + more);
    memset(cached, 9, bytes + more);
    fill_up(engine);
    engine.free(cached);
    const auto in_use = [&] { return engine->budget().used() - engine->heap().cached_bytes(); };
    const uint64_t in_use_before = in_use();
    engine.use({cold});
    EXPECT_TRUE(engine.is_resident(cold));
    EXPECT_EQ(in_use(), in_use_before + bytes);
    EXPECT_LE(engine->heap().cached_bytes(), more + tail) << "its pages are the cold one's now";
    EXPECT_FALSE(is_readable(cached)) << "whose first granule or tail went";
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
    EXPECT_FALSE(engine.device().arena().can_keep_source());
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

// The program may have split a range's mapping; the kernel then does not move the range.
TEST(HeapCacheTest, PagesThatCannotMoveAreGivenBack) {
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

// An extent moves granule by granule, and the kernel may refuse one (vm.max_map_count). The extent
// stays cold, with the right bytes, and is fetched once the refusal is over.
TEST(HeapCacheTest, FetchThatIsRefusedHalfWayLeavesTheRightBytes) {
  const int outcome = run_in_child([] {
    TestEngine engine(small_budget());
    char* cold = engine.allocate(6 * kMiB);
    fill_pattern(cold, 6 * kMiB, 1);
    ASSERT_TRUE(engine.evict(cold));
    std::vector<char*> donors;
    for (int index = 0; index < 3; ++index) donors.push_back(engine.allocate(2 * kMiB));
    fill_up(engine);
    for (char* donor : donors) engine.free(donor);
    const uint64_t in_use = engine->budget().used() - engine->heap().cached_bytes();
    // One of two neighbouring granules has this bit in its address.
    if (!deny_syscall_when(SYS_mremap, ENOMEM, 4, kGranuleBytes)) _exit(kSkipped);
    {
      const GateScope op(engine, {cold});
      EXPECT_TRUE(engine.is_cold(cold));
      EXPECT_TRUE(has_pattern(cold, 6 * kMiB, 1));
      cold[8] = 3;
    }
    EXPECT_EQ(engine->budget().used() - engine->heap().cached_bytes(), in_use);
    EXPECT_EQ(cold[8], 3);
    cold[8] = 0;
    EXPECT_EQ(first_difference(cold, 6 * kMiB, 1), 8u);
    EXPECT_EQ(engine.check_books(), "");
  });
  if (outcome == kSkipped) GTEST_SKIP() << "the kernel allows no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

// The kernel maps nothing more. Memory is given back all the same, and no freed address shows
// another's slot.
TEST(HeapCacheTest, MemoryIsGivenBackWithoutMappings) {
  if (kHasThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer itself maps memory at fixed addresses";
  const int outcome = run_in_child([] {
    TestEngine engine(small_budget());
    char* cold = engine.allocate(2 * kMiB);
    fill_pattern(cold, 2 * kMiB, 1);
    ASSERT_TRUE(engine.evict(cold));
    char* resident = engine.allocate(2 * kMiB);
    fill_pattern(resident, 2 * kMiB, 2);
    if (!deny_syscall_when(SYS_mmap, ENOMEM, 3, MAP_FIXED)) _exit(kSkipped);
    engine.free(cold);
    engine.free(resident);
    engine->heap().drop_cached(~uint64_t{0});
    EXPECT_EQ(engine->heap().cached_bytes(), 0u);
    EXPECT_EQ(engine->budget().used(), 0u);
    char* again = engine.allocate(2 * kMiB);
    EXPECT_NE(again, cold);
    EXPECT_EQ(again[0], 0) << "fresh pages";
    EXPECT_EQ(engine->heap().extent_count(), 1u);
    EXPECT_EQ(engine.device().disk()->used_bytes(), 2 * kMiB) << "the slot is still mapped";
  });
  if (outcome == kSkipped) GTEST_SKIP() << "the kernel allows no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

// Pages of a private mapping of a file do not become anonymous when they move.
TEST(HeapCacheTest, PagesOfAFileServeNoOtherExtent) {
  TestEngine engine;
  char* mapped = engine.allocate(2 * kMiB);
  memset(mapped, 1, 2 * kMiB);
  engine.extent(mapped)->is_file_mapped = true;
  engine.free(mapped);
  char* larger = engine.allocate(3 * kMiB);
  EXPECT_EQ(larger[0], 0) << "fresh pages";
  EXPECT_FALSE(engine.extent(larger)->is_file_mapped);
}

// All sizes, little room: whichever pages change hands, each extent has its own bytes.
class HeapFramesTest : public ::testing::TestWithParam<Choice> {};
INSTANTIATE_TEST_SUITE_P(Userfaultfd, HeapFramesTest,
                         ::testing::Values(Choice::kOff, Choice::kAuto), [](const auto& choice) {
                           return choice.param == Choice::kOff ? "off" : "auto";
                         });

TEST_P(HeapFramesTest, EachKeepsItsOwnBytes) {
  Random random;
  TestEngine engine([](CpuEngineConfig& config) {
    small_budget(40 * kMiB)(config);
    config.userfaultfd = GetParam();
  });
  struct Block {
    char* address;
    uint64_t bytes;
    uint64_t seed;
  };
  std::vector<Block> blocks;
  for (uint64_t round = 1; round <= (kHasSanitizer ? 600u : 2000u); ++round) {
    const uint64_t draw = random.between(0, 3);
    if (draw == 0 && blocks.size() < 24) {
      const uint64_t bytes = random.between(1, 1500) * kPageBytes;
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
