// SPDX-License-Identifier: Apache-2.0
//
// The host tier: blocks and chunks in small cases; every refusal (budget, machine, kernel, driver)
// and what still works after it; forks; and how much of the chunks is unused when blocks of a
// model's sizes come and go. host_tier_fuzz_test.cpp has long random runs and threads.
#include "tier/host_tier.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/sanitizers.h"
#include "support/child_process.h"
#include "support/fake_pinner.h"
#include "support/host_tiers.h"
#include "support/random.h"

namespace tencache {
namespace {

TEST(HostTierTest, ABudgetThatHoldsNothingIsRefused) {
  const Result<std::unique_ptr<HostTier>> tier = HostTier::create({.budget_bytes = 4095});
  ASSERT_FALSE(tier.is_ok());
  EXPECT_EQ(tier.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(tier.status().message().find("budget of host memory"), std::string::npos);
}

TEST(HostTierTest, MapsNothingBeforeItIsNeeded) {
  const auto tier = make_tier({.budget_bytes = kGiB});
  EXPECT_EQ(tier->stats().chunk_bytes, 0U);
  EXPECT_TRUE(tier->is_valid());
}

TEST(HostTierTest, ABlockIsAlignedPinnedAndOfItsSize) {
  FakePinner pinner;
  const auto tier = make_tier({.budget_bytes = 4 * kMiB, .chunk_bytes = kMiB, .pinner = &pinner});
  const HostBlock block = must_allocate(*tier, 5000);
  EXPECT_EQ(block.bytes, 5000U);
  EXPECT_EQ(block.capacity_bytes(), 8192U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block.memory) % kIoAlignment, 0U);
  EXPECT_TRUE(block.is_pinned);
  EXPECT_TRUE(pinner.is_pinned(block.memory, block.capacity_bytes()));
  memset(block.memory, 1, block.capacity_bytes());
  EXPECT_EQ(tier->stats().asked_bytes, 5000U);
  EXPECT_EQ(tier->stats().pinned_bytes, tier->stats().chunk_bytes);
  tier->release(block);
  EXPECT_EQ(tier->stats().asked_bytes, 0U);
  EXPECT_EQ(tier->stats().peak_asked_bytes, 5000U);
  EXPECT_TRUE(tier->is_valid());
}

TEST(HostTierTest, ChunksMayGrowWithWhatIsMappedAndGoBackWhenNothingLiesInThem) {
  FakePinner pinner;
  const auto tier = make_tier({.budget_bytes = 64 * kMiB,
                               .chunk_bytes = 8 * kMiB,
                               .first_chunk_bytes = kMiB,
                               .pinner = &pinner});
  const HostBlock first = must_allocate(*tier, 40);
  EXPECT_EQ(tier->stats().chunk_bytes, kMiB);
  std::vector<HostBlock> blocks;
  for (int index = 0; index < 3; ++index) blocks.push_back(must_allocate(*tier, kMiB));
  EXPECT_EQ(tier->stats().chunk_bytes, 4 * kMiB) << "1, as much again, and twice as much";
  for (const HostBlock& block : blocks) tier->release(block);
  EXPECT_EQ(tier->trim(), 3 * kMiB);
  EXPECT_EQ(tier->stats().chunk_bytes, kMiB);
  EXPECT_EQ(tier->stats().pinned_bytes, kMiB);
  EXPECT_TRUE(tier->is_valid());
  EXPECT_TRUE(pinner.is_pinned(first.memory, first.capacity_bytes()));
  tier->release(must_allocate(*tier, kMiB));
  EXPECT_EQ(tier->stats().chunk_bytes, 2 * kMiB);
  tier->release(first);
  EXPECT_EQ(tier->trim(), 2 * kMiB);
  EXPECT_TRUE(tier->is_valid());
}

TEST(HostTierTest, AChunkHoldsAWholeNumberOfItsBlocks) {
  const auto tier = make_tier({.budget_bytes = 64 * kMiB, .chunk_bytes = kMiB});
  const uint64_t block_bytes = 300 * kKiB;
  std::vector<HostBlock> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(must_allocate(*tier, block_bytes));
  EXPECT_EQ(tier->stats().chunk_bytes, 3 * block_bytes);
  blocks.push_back(must_allocate(*tier, block_bytes));
  EXPECT_EQ(tier->stats().chunk_bytes, 6 * block_bytes);
  EXPECT_EQ(tier->stats().mapped_chunks.current, 2U);
  for (const HostBlock& block : blocks) tier->release(block);
  EXPECT_EQ(tier->stats().chunk_bytes, 6 * block_bytes) << "chunks are kept";
}

TEST(HostTierTest, TakeMapsNothing) {
  const auto tier = make_tier({.budget_bytes = 4 * kMiB, .chunk_bytes = kMiB});
  EXPECT_FALSE(tier->take(4096).is_valid());
  EXPECT_FALSE(tier->take(8 * kMiB).is_valid()) << "more than the budget";
  EXPECT_EQ(tier->stats().mapped_chunks.current, 0U);
  const HostBlock first = must_allocate(*tier, 512 * kKiB);
  const HostBlock second = tier->take(500 * kKiB);
  EXPECT_EQ(second.bytes, 500 * kKiB);
  EXPECT_EQ(second.memory, first.memory + 512 * kKiB);
  EXPECT_FALSE(tier->take(500 * kKiB).is_valid());
  EXPECT_EQ(tier->stats().mapped_chunks.current, 1U);
  EXPECT_EQ(tier->stats().asked_bytes, 1012 * kKiB);
  tier->release(first);
  tier->release(second);
  EXPECT_TRUE(tier->is_valid());
}

TEST(HostTierTest, ALargeBlockGetsAChunkOfItsOwnWhichIsUsedAgain) {
  FakePinner pinner;
  const auto tier = make_tier({.budget_bytes = 64 * kMiB, .chunk_bytes = kMiB, .pinner = &pinner});
  const HostBlock large = must_allocate(*tier, 5 * kMiB + 1);
  EXPECT_EQ(tier->stats().chunk_bytes, 5 * kMiB + 4096);
  EXPECT_TRUE(pinner.is_pinned(large.memory, large.capacity_bytes()));
  tier->release(large);
  std::vector<HostBlock> small;
  for (int i = 0; i < 5; ++i) small.push_back(must_allocate(*tier, kMiB));
  EXPECT_EQ(tier->stats().mapped_chunks.current, 1U);
  for (const HostBlock& block : small) tier->release(block);
  EXPECT_EQ(must_allocate(*tier, 5 * kMiB).memory, large.memory) << "the pieces join again";
}

TEST(HostTierTest, NoBlockLiesInTwoChunks) {
  FakePinner pinner;
  const auto tier = make_tier({.budget_bytes = 64 * kMiB, .chunk_bytes = kMiB, .pinner = &pinner});
  std::vector<HostBlock> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(must_allocate(*tier, kMiB));
  for (const HostBlock& block : blocks) tier->release(block);
  const HostBlock block = must_allocate(*tier, 2 * kMiB);
  EXPECT_TRUE(pinner.is_pinned(block.memory, block.bytes));
  EXPECT_EQ(tier->stats().mapped_chunks.current, 9U) << "eight free neighbours are not one piece";
}

TEST(HostTierTest, TheBudgetIsHard) {
  const auto tier = make_tier({.budget_bytes = 3 * kMiB + 100, .chunk_bytes = 2 * kMiB});
  EXPECT_EQ(tier->budget_bytes(), 3 * kMiB);
  const HostBlock first = must_allocate(*tier, kMiB);
  const HostBlock second = must_allocate(*tier, kMiB);
  const HostBlock last = must_allocate(*tier, 600 * kKiB);
  EXPECT_EQ(tier->stats().chunk_bytes, 2 * kMiB + 600 * kKiB) << "two would be over the budget";
  const Result<HostBlock> refused = tier->allocate(500 * kKiB);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kNoSpace);
  for (const char* part : {"no room for 500 KiB", "2.59 MiB of its budget of 3.00 MiB are in use",
                           "424 KiB can still be mapped", "budget of host memory"}) {
    EXPECT_NE(refused.status().message().find(part), std::string::npos)
        << part << ": " << refused.status().message();
  }
  EXPECT_EQ(tier->allocate(UINT64_MAX).status().code(), StatusCode::kNoSpace);
  EXPECT_TRUE(tier->may_hold(3 * kMiB)) << "once all chunks are free and have gone";
  EXPECT_FALSE(tier->may_hold(3 * kMiB + 1));
  tier->release(second);
  const HostBlock again = must_allocate(*tier, 500 * kKiB);
  EXPECT_EQ(again.memory, second.memory);
  EXPECT_TRUE(tier->is_valid());
  for (const HostBlock& block : {first, last, again}) tier->release(block);
}

// Some tensors grow a little with each step, as caches of keys and values do.
TEST(HostTierTest, FreeChunksMakeWayForBlocksThatTheyCannotHold) {
  FakePinner pinner;
  const auto tier = make_tier({.budget_bytes = 16 * kMiB, .chunk_bytes = kMiB, .pinner = &pinner});
  const HostBlock kept = must_allocate(*tier, 2 * kMiB);
  for (uint64_t bytes = 3 * kMiB; bytes <= 14 * kMiB; bytes += kMiB) {
    tier->release(must_allocate(*tier, bytes));
    EXPECT_LE(tier->stats().chunk_bytes, 16 * kMiB);
  }
  EXPECT_EQ(tier->stats().chunk_bytes, 16 * kMiB);
  EXPECT_TRUE(pinner.is_pinned(kept.memory, kept.bytes)) << "where a block lies stays";
  const Result<HostBlock> refused = tier->allocate(15 * kMiB);
  EXPECT_EQ(refused.status().code(), StatusCode::kNoSpace);
  EXPECT_EQ(tier->stats().chunk_bytes, 16 * kMiB) << "nothing goes for what cannot be held";
  EXPECT_TRUE(tier->may_grow(14 * kMiB));
  EXPECT_FALSE(tier->may_grow(15 * kMiB));
  tier->release(kept);
  tier->release(must_allocate(*tier, 16 * kMiB));
  EXPECT_TRUE(tier->is_valid());
}

TEST(HostTierTest, FreeChunksMakeWayWhereTheMachineIsShort) {
  uint64_t left_bytes = kGiB;
  const auto tier =
      make_tier({.budget_bytes = 64 * kMiB, .chunk_bytes = kMiB, .bytes_left = [&left_bytes] {
                   return std::exchange(left_bytes, kGiB);
                 }});
  const HostBlock first = must_allocate(*tier, 3 * kMiB);
  tier->release(must_allocate(*tier, 3 * kMiB));
  left_bytes = 0;  // until something has gone
  EXPECT_FALSE(tier->allocate(5 * kMiB).is_ok()) << "what is free would not do";
  EXPECT_EQ(tier->stats().mapped_chunks.current, 2U);
  tier->release(first);
  left_bytes = 0;
  tier->release(must_allocate(*tier, 5 * kMiB));
  EXPECT_EQ(tier->stats().mapped_chunks.current, 1U);
  EXPECT_TRUE(tier->is_valid());
}

TEST(HostTierTest, MayGrowUntilTheBudgetOrTheMachineRefuses) {
  uint64_t left_bytes = kGiB;
  const auto tier =
      make_tier({.budget_bytes = 4 * kMiB, .chunk_bytes = kMiB, .bytes_left = [&left_bytes] {
                   return left_bytes;
                 }});
  EXPECT_TRUE(tier->may_grow(4 * kMiB));
  EXPECT_FALSE(tier->may_grow(4 * kMiB + 1));
  EXPECT_FALSE(tier->may_grow(UINT64_MAX));
  left_bytes = 0;
  EXPECT_FALSE(tier->allocate(kMiB).is_ok());
  EXPECT_FALSE(tier->may_grow(kMiB)) << "the machine has refused";
  left_bytes = kGiB;
  const HostBlock block = must_allocate(*tier, kMiB);
  EXPECT_TRUE(tier->may_grow(3 * kMiB));
  EXPECT_FALSE(tier->may_grow(3 * kMiB + 1));
  tier->release(block);
}

// A block beyond the budget is memory of its own, unmapped with the block.
TEST(HostTierTest, ABlockBeyondTheBudgetCountsApart) {
  uint64_t left_bytes = kGiB;
  const auto tier =
      make_tier({.budget_bytes = kMiB, .bytes_left = [&left_bytes] { return left_bytes; }});
  const HostBlock inside = must_allocate(*tier, kMiB);
  const Result<HostBlock> beyond = tier->allocate_beyond_budget(5000);
  ASSERT_TRUE(beyond.is_ok()) << beyond.status().message();
  EXPECT_TRUE(beyond.value().is_beyond_budget());
  EXPECT_FALSE(inside.is_beyond_budget());
  EXPECT_FALSE(beyond.value().is_pinned);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(beyond.value().memory) % kIoAlignment, 0U);
  memset(beyond.value().memory, 1, beyond.value().capacity_bytes());
  EXPECT_EQ(tier->stats().beyond_bytes, 5000U);
  EXPECT_EQ(tier->stats().asked_bytes, kMiB);
  EXPECT_EQ(tier->stats().chunk_bytes, kMiB);
  left_bytes = 0;
  EXPECT_EQ(tier->allocate_beyond_budget(5000).status().code(), StatusCode::kNoSpace);
  tier->release(beyond.value());
  tier->release(inside);
  EXPECT_EQ(tier->stats().beyond_bytes, 0U);
  EXPECT_EQ(tier->stats().peak_beyond_bytes, 5000U);
  EXPECT_TRUE(tier->is_valid());
}

TEST(HostTierTest, AChunkShrinksToWhatIsLeftOfTheMachine) {
  uint64_t left_bytes = 128 * kMiB + 2 * kMiB;
  const auto tier = make_tier(
      {.budget_bytes = kGiB, .chunk_bytes = 8 * kMiB, .bytes_left = [&] { return left_bytes; }});
  const HostBlock block = must_allocate(*tier, 2 * kMiB);
  EXPECT_EQ(tier->stats().chunk_bytes, 2 * kMiB);
  for (const uint64_t bytes : {128 * kMiB, kMiB, uint64_t{0}}) {
    left_bytes = bytes;
    const Result<HostBlock> refused = tier->allocate(kMiB);
    ASSERT_FALSE(refused.is_ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kNoSpace);
    EXPECT_NE(refused.status().message().find("cannot grow by 1.00 MiB"), std::string::npos)
        << refused.status().message();
    EXPECT_EQ(tier->stats().chunk_bytes, 2 * kMiB);
  }
  left_bytes = kGiB;
  must_allocate(*tier, kMiB);
  EXPECT_EQ(tier->stats().chunk_bytes, 10 * kMiB);
  tier->release(block);
}

TEST(HostTierTest, MemoryThatIsRefusedLeavesAllAsItWas) {
  bool refuses = false;
  int calls = 0;
  const auto tier =
      make_tier({.budget_bytes = kGiB,
                 .chunk_bytes = 2 * kMiB,
                 .memory_factory = [&](const HostMemoryRequest& request) -> Result<HostMemory> {
                   ++calls;
                   if (refuses) return status_from_errno(ENOMEM, "cannot map");
                   return HostMemory::map(request);
                 }});
  const HostBlock block = must_allocate(*tier, 2 * kMiB);
  memset(block.memory, 7, block.bytes);
  refuses = true;
  calls = 0;
  const Result<HostBlock> refused = tier->allocate(kMiB);
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(calls, 2) << "room for two, then for the one that is asked";
  EXPECT_EQ(tier->allocate(2 * kMiB).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(tier->stats().chunk_bytes, 2 * kMiB);
  EXPECT_TRUE(tier->is_valid());
  EXPECT_EQ(block.memory[2 * kMiB - 1], 7);
  tier->release(block);
  EXPECT_EQ(must_allocate(*tier, kMiB).memory, block.memory) << "what is there is still used";
  refuses = false;
  must_allocate(*tier, 2 * kMiB);
}

TEST(HostTierTest, AProcessMayHaveNoMoreAddresses) {
  if (kHasSanitizer) GTEST_SKIP() << "sanitizers keep terabytes of address space";
  const int outcome = run_in_child([] {
    const auto tier = make_tier({.budget_bytes = 8 * kGiB, .threads = 1});
    const HostBlock block = must_allocate(*tier, 4 * kMiB);
    const rlimit limit = {kGiB, kGiB};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    const Result<HostBlock> refused = tier->allocate(2 * kGiB);
    ASSERT_FALSE(refused.is_ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
    EXPECT_NE(refused.status().message().find("ulimit -v"), std::string::npos)
        << refused.status().message();
    memset(block.memory, 1, block.bytes);
    tier->release(must_allocate(*tier, 4 * kMiB));
    EXPECT_TRUE(tier->is_valid());
  });
  EXPECT_EQ(outcome, 0);
}

TEST(HostTierTest, AChunkThatCannotBePinnedStaysPageable) {
  FakePinner pinner;
  pinner.refuse_after(1);
  const auto tier = make_tier({.budget_bytes = kGiB, .chunk_bytes = kMiB, .pinner = &pinner});
  const HostBlock pinned = must_allocate(*tier, kMiB);
  testing::internal::CaptureStderr();
  const HostBlock second = must_allocate(*tier, kMiB);
  const HostBlock third = must_allocate(*tier, kMiB);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(pinned.is_pinned);
  EXPECT_FALSE(second.is_pinned);
  EXPECT_FALSE(third.is_pinned);
  memset(third.memory, 1, third.bytes);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  for (const char* part : {"warning", "Cannot pin memory: the test refuses.", "ulimit -l"}) {
    EXPECT_NE(log.find(part), std::string::npos) << part << ": " << log;
  }
  EXPECT_EQ(tier->stats().chunk_bytes, 3 * kMiB);
  EXPECT_EQ(tier->stats().pinned_bytes, kMiB);
  pinner.refuse_after(1);
  const HostBlock fourth = must_allocate(*tier, kMiB);
  EXPECT_TRUE(fourth.is_pinned) << "each chunk is tried";
  EXPECT_TRUE(tier->is_valid());
}

TEST(HostTierTest, WithoutAPinnerNothingIsPinnedAndNothingSaid) {
  testing::internal::CaptureStderr();
  const auto tier = make_tier({.budget_bytes = kMiB});
  EXPECT_FALSE(must_allocate(*tier, 4096).is_pinned);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(HostTierTest, AsksForMemoryOfItsNode) {
  int node = -1;
  const auto tier =
      make_tier({.budget_bytes = kMiB,
                 .node = 5000,
                 .memory_factory = [&](const HostMemoryRequest& request) -> Result<HostMemory> {
                   node = request.node;
                   return HostMemory::map(request);
                 }});
  must_allocate(*tier, 4096);
  EXPECT_EQ(node, 5000);
}

TEST(HostTierTest, AForkedChildHasNoHostTier) {
  FakePinner pinner;
  auto tier = make_tier({.budget_bytes = 4 * kMiB, .chunk_bytes = kMiB, .pinner = &pinner});
  const HostBlock block = must_allocate(*tier, kMiB);
  const int outcome = run_in_child([&] {
    const Result<HostBlock> refused = tier->allocate(4096);
    EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_FALSE(tier->take(4096).is_valid());
    tier->release(block);
    tier.reset();
    EXPECT_EQ(pinner.pinned_bytes(), kMiB);
  });
  EXPECT_EQ(outcome, 0);
  tier->release(block);
}

TEST(HostTierDeathTest, RefusesWhatItDidNotGive) {
  // A forked child has no tier and would check nothing, so the test runs again in a new process.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto tier = make_tier({.budget_bytes = 4 * kMiB, .chunk_bytes = kMiB});
  const HostBlock block = must_allocate(*tier, 64 * kKiB);
  EXPECT_DEATH((void)tier->allocate(0), "a block of 0 bytes");
  EXPECT_DEATH(tier->release({}), "an invalid block");
  HostBlock longer = block;
  longer.bytes += kMiB;
  EXPECT_DEATH(tier->release(longer), "freed");
  tier->release(block);
  EXPECT_DEATH(tier->release(block), "freed");
}

// ---- Unused bytes --------------------------------------------------------------------------

/// Sizes of a 7 B model that trains with Adam, a 64th of each. Each of 32 layers has the weights
/// and, twice as large, the master weights and both moments. There are also activations of odd
/// sizes, and embeddings.
std::vector<uint64_t> model_sizes() {
  constexpr uint64_t kScaledMiB = kMiB / 64;
  std::vector<uint64_t> sizes;
  for (int layer = 0; layer < 32; ++layer) {
    for (const uint64_t factor : {1, 2, 2, 2}) {
      sizes.insert(sizes.end(), 4, 32 * kScaledMiB * factor);
      sizes.insert(sizes.end(), 3, 86 * kScaledMiB * factor);
    }
    for (const uint64_t bytes : {57 * kScaledMiB + 5000, 13 * kScaledMiB + 9000, 101 * kScaledMiB})
      sizes.push_back(bytes);
  }
  for (const uint64_t factor : {1, 2, 2, 2})
    sizes.insert(sizes.end(), 2, 250 * kScaledMiB * factor);
  return sizes;
}

double unused_share(const HostTier& tier) {
  const HostTierStats stats = tier.stats();
  return static_cast<double>(stats.chunk_bytes) / static_cast<double>(stats.peak_asked_bytes) - 1;
}

// Every block leaves and comes back once an iteration, in changing orders. Three in ten are away at
// a time, as under a plan that moves extents ahead of their use.
TEST(HostTierTest, LeavesAtMostTwoPercentUnusedWhenBlocksComeAndGo) {
  Random random(1);
  const auto tier = make_tier({.budget_bytes = 8 * kGiB,
                               .chunk_bytes = kMiB,
                               .memory_factory = &map_addresses,
                               .bytes_left = [] { return 64 * kGiB; }});
  std::vector<uint64_t> sizes = model_sizes();
  shuffle(sizes, random);
  std::vector<HostBlock> blocks;
  for (const uint64_t bytes : sizes) blocks.push_back(must_allocate(*tier, bytes));
  EXPECT_LE(unused_share(*tier), 0.01);

  std::vector<size_t> order(sizes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const size_t away = sizes.size() * 3 / 10;
  for (int iteration = 0; iteration < 100; ++iteration) {
    shuffle(order, random);
    for (size_t i = 0; i < order.size() + away; ++i) {
      if (i < order.size()) tier->release(blocks[order[i]]);
      if (i >= away) blocks[order[i - away]] = must_allocate(*tier, sizes[order[i - away]]);
    }
  }
  EXPECT_TRUE(tier->is_valid());
  EXPECT_LE(unused_share(*tier), 0.02);
  printf("unused after churn: %.2f %% of %s in %llu chunks\n", 100 * unused_share(*tier),
         format_bytes(tier->stats().peak_asked_bytes).c_str(),
         static_cast<unsigned long long>(tier->stats().mapped_chunks.current));
}

// The worst case: the set of present blocks changes at random, and so does the number of blocks of
// each size.
TEST(HostTierTest, LeavesLittleUnusedWhenTheMixtureChanges) {
  Random random(2);
  const auto tier = make_tier({.budget_bytes = 8 * kGiB,
                               .chunk_bytes = kMiB,
                               .memory_factory = &map_addresses,
                               .bytes_left = [] { return 64 * kGiB; }});
  std::vector<uint64_t> sizes = model_sizes();
  shuffle(sizes, random);
  std::vector<HostBlock> here;
  std::vector<uint64_t> away;
  for (const uint64_t bytes : sizes) {
    if (here.size() < sizes.size() * 7 / 10) {
      here.push_back(must_allocate(*tier, bytes));
    } else {
      away.push_back(bytes);
    }
  }
  for (int step = 0; step < 30'000; ++step) {
    HostBlock& leaves = here[random.between(0, here.size() - 1)];
    uint64_t& comes = away[random.between(0, away.size() - 1)];
    tier->release(leaves);
    const uint64_t bytes = std::exchange(comes, leaves.bytes);
    leaves = must_allocate(*tier, bytes);
  }
  EXPECT_TRUE(tier->is_valid());
  EXPECT_LE(unused_share(*tier), 0.12);
  printf("unused after changes of the mixture: %.2f %%\n", 100 * unused_share(*tier));
}

}  // namespace
}  // namespace tencache
