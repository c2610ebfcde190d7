// SPDX-License-Identifier: Apache-2.0
//
// Small tensors that fill the budget, with a whole engine: beyond a share of the budget they lie
// in slabs, which leave and come back as a whole. While they are few, they stay in malloc.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "memory/cpu_heap.h"
#include "memory/slabs.h"
#include "support/heap_books.h"
#include "support/random.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBudget = 32 * kMiB;
constexpr uint64_t kSmall = 64 * kKiB;

TestEngine::Adjust small_budget(std::function<void(CpuEngineConfig&)> more = {}) {
  return [more](CpuEngineConfig& config) {
    config.budget_bytes = kBudget;
    config.heap.extent_min_bytes = kMiB;
    if (more) more(config);
  };
}

uint64_t small_bytes(TestEngine& engine) { return engine.device().heap().small_bytes(); }

TEST(CpuHeapSlabsTest, FewSmallTensorsStayInMalloc) {
  TestEngine engine(small_budget());
  const std::vector<char*> tensors = engine.written(kBudget / 8 / kSmall - 2, kSmall);
  for (char* tensor : tensors) EXPECT_EQ(engine.extent(tensor), nullptr);
  EXPECT_EQ(HeapBooks::slab_count(engine.device().heap()), 0u);
  for (char* tensor : tensors) engine.free(tensor);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(CpuHeapSlabsTest, SmallTensorsBeyondTheBudgetStayWithinItAndKeepTheirBytes) {
  TestEngine engine(small_budget());
  const uint64_t count = 3 * kBudget / kSmall;
  const std::vector<char*> tensors = engine.written(count, kSmall);
  EXPECT_LE(small_bytes(engine), kBudget / 8);
  EXPECT_LE(engine->heap().extent_count(), 3 * kBudget / Slabs::kSlabBytes + 1)
      << "one extent serves for many";
  for (int round = 0; round < 2; ++round) {
    for (uint64_t index = 0; index < count; ++index) {
      const GateScope op(engine, {tensors[index]});
      ASSERT_TRUE(has_pattern(tensors[index], kSmall, index)) << index;
    }
  }
  EXPECT_LE(engine.read(engine.stats().peak_device_bytes), kBudget);
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
  EXPECT_GT(engine.read(engine.stats().evicted_bytes), kBudget);
  EXPECT_EQ(engine.read(engine.stats().unannounced_writes), 0u);
  for (char* tensor : tensors) engine.free(tensor);
  EXPECT_EQ(HeapBooks::slab_count(engine.device().heap()), 0u);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(CpuHeapSlabsTest, WhatIsTooLargeForASlabIsAnExtentOfItsOwn) {
  TestEngine engine(small_budget());
  std::vector<char*> tensors = engine.written(kBudget / 8 / kSmall, kSmall);
  tensors.push_back(engine.allocate(768 * kKiB));
  ASSERT_NE(engine.extent(tensors.back()), nullptr);
  EXPECT_EQ(engine.extent(tensors.back())->bytes, 768 * kKiB);
  EXPECT_FALSE(engine.extent(tensors.back())->is_slab);
  tensors.push_back(engine.allocate(Slabs::kBlockBytesMin - 1));
  EXPECT_EQ(engine.extent(tensors.back()), nullptr) << "too small to be worth it";
  for (char* tensor : tensors) engine.free(tensor);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(CpuHeapSlabsTest, WhereNothingLeavesThereAreNoSlabs) {
  TestEngine engine(small_budget([](CpuEngineConfig& config) {
    config.heap.strict = true;
    config.disk.reset();
  }));
  const std::vector<char*> tensors = engine.written(kBudget / 2 / kSmall, kSmall);
  for (char* tensor : tensors) {
    EXPECT_EQ(engine.extent(tensor), nullptr);
    engine.free(tensor);
  }
}

TEST(CpuHeapSlabsTest, HalfOfTheExtentsAreLeftToLargeTensors) {
  TestEngine engine(
      small_budget([](CpuEngineConfig& config) { config.heap.extent_count_max = 6; }));
  const std::vector<char*> tensors = engine.written(kBudget / 2 / kSmall, kSmall);
  EXPECT_EQ(engine->heap().extent_count(), 3u);
  EXPECT_EQ(engine.extent(tensors.back()), nullptr);
  for (char* tensor : tensors) engine.free(tensor);
  EXPECT_EQ(engine.check_books(), "");
}

// What an op allocates stays usable until the op ends, in a slab, too.
TEST(CpuHeapSlabsTest, BlockThatAnOpAllocatesPinsItsSlab) {
  TestEngine engine(small_budget());
  std::vector<char*> tensors = engine.written(kBudget / 8 / kSmall + 1, kSmall);
  const Extent* slab = engine.extent(tensors.back());
  ASSERT_TRUE(slab != nullptr && slab->is_slab);
  engine->evictor().arm();
  {
    const GateScope op(engine, std::initializer_list<const void*>{});
    tensors.push_back(engine.allocate(kSmall));
    ASSERT_EQ(engine.extent(tensors.back()), slab);
    EXPECT_EQ(engine->evictor().evict_all(), 0u);
  }
  EXPECT_EQ(engine->evictor().evict_all(), 1u);
  EXPECT_TRUE(engine.is_cold(tensors.back()));
  EXPECT_NE(engine.extent(tensors.emplace_back(engine.allocate(kSmall))), slab) << "it is cold";
  for (char* tensor : tensors) engine.free(tensor);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(CpuHeapSlabsTest, ColdSlabEndsWithItsLastBlock) {
  TestEngine engine(small_budget());
  const std::vector<char*> tensors = engine.written(kBudget / 8 / kSmall + 3, kSmall);
  engine->evictor().evict_all();
  for (char* tensor : tensors) engine.free(tensor);
  EXPECT_EQ(HeapBooks::slab_count(engine.device().heap()), 0u);
  EXPECT_EQ(engine->heap().extent_count(), 0u);
  EXPECT_EQ(engine.check_books(), "");
}

// Threads allocate, write, check and free blocks of all sizes around slabs, in ops and without,
// while everything that may leave leaves again and again.
TEST(CpuHeapSlabsTest, BytesStayRightWhileThreadsAllocateAndAllLeaves) {
  TestEngine engine(small_budget());
  std::vector<char*> crowd;
  while (small_bytes(engine) + Slabs::kBlockBytesMin <= kBudget / 8) {
    crowd.push_back(engine.allocate(Slabs::kBlockBytesMin - kPageBytes));
  }
  engine->evictor().arm();
  std::atomic<bool> is_done{false};
  std::atomic<uint64_t> differences{0};
  std::vector<std::jthread> threads;
  for (uint64_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      Random random(thread + 1);
      struct Live {
        uint64_t bytes;
        uint64_t seed;
      };
      std::map<char*, Live> live;
      const auto check_and_free = [&](std::map<char*, Live>::iterator tensor) {
        {
          const GateScope op(engine, {tensor->first});
          if (!has_pattern(tensor->first, tensor->second.bytes, tensor->second.seed)) ++differences;
        }
        engine.free(tensor->first);
        live.erase(tensor);
      };
      for (int round = 0; round < 1200; ++round) {
        if (live.size() < 40 && random.chance(0.6)) {
          const uint64_t bytes = random.between(4, 80) * 8 * kKiB;
          const uint64_t seed = random.next();
          const GateScope op(engine, std::initializer_list<const void*>{});
          char* const tensor = engine.allocate(bytes);
          fill_pattern(tensor, bytes, seed);
          live[tensor] = {bytes, seed};
        } else if (!live.empty()) {
          auto tensor = live.begin();
          std::advance(tensor, random.between(0, live.size() - 1));
          if (random.chance(0.5)) {
            check_and_free(tensor);
            continue;
          }
          const GateScope op(engine, {tensor->first}, AccessMode::kWrite);
          tensor->second.seed = random.next();
          fill_pattern(tensor->first, tensor->second.bytes, tensor->second.seed);
        }
      }
      while (!live.empty()) check_and_free(live.begin());
    });
  }
  std::jthread mover([&] {
    while (!is_done.load()) engine->evictor().evict_all();
  });
  threads.clear();
  is_done.store(true);
  mover.join();
  EXPECT_EQ(differences.load(), 0u);
  for (char* tensor : crowd) engine.free(tensor);
  EXPECT_EQ(engine.check_books(), "");
}

}  // namespace
}  // namespace tencache
