// SPDX-License-Identifier: Apache-2.0
//
// The books of small blocks, alone and under threads that trim all the time. One test shows that
// malloc really gives its free memory back.
#include "memory/malloc_use.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/sanitizers.h"
#include "base/units.h"
#include "platform/address_arena.h"
#include "support/random.h"

namespace tencache {
namespace {

class MallocUseTest : public ::testing::Test {
 protected:
  void add(uint64_t bytes) {
    if (const uint64_t more = blocks_.add(bytes)) {
      budget_.force_reserve(more);
      blocks_.confirm(more);
    }
  }

  Counter peak_{0};
  Budget budget_{kGiB, kGiB, peak_};
  MallocUse blocks_{budget_};
};

TEST_F(MallocUseTest, WhatWasFreedServesTheNext) {
  add(10 * kMiB);
  blocks_.remove(6 * kMiB);
  EXPECT_EQ(blocks_.used(), 4 * kMiB);
  EXPECT_EQ(blocks_.add(5 * kMiB), 0u);
  EXPECT_EQ(blocks_.add(2 * kMiB), kMiB);
}

TEST_F(MallocUseTest, TrimmingGivesBackWhatIsNotInUse) {
  add(20 * kMiB);
  blocks_.remove(15 * kMiB);
  EXPECT_EQ(budget_.used(), 20 * kMiB);
  EXPECT_EQ(blocks_.trim(), 15 * kMiB);
  EXPECT_EQ(budget_.used(), 5 * kMiB);
  EXPECT_EQ(blocks_.reserved(), 5 * kMiB);
}

TEST_F(MallocUseTest, LittleIsNotWorthTrimming) {
  add(20 * kMiB);
  blocks_.remove(kMiB);
  EXPECT_EQ(blocks_.trim(), 0u);
  EXPECT_EQ(budget_.used(), 20 * kMiB);
}

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  file >> total >> resident;
  return resident * kPageBytes;
}

TEST_F(MallocUseTest, MallocGivesThePagesBack) {
  if (kHasSanitizer) GTEST_SKIP() << "sanitizers have their own malloc";
  constexpr uint64_t kBlockBytes = 60 * kKiB;
  std::vector<void*> blocks;
  std::vector<void*> between;  // fragment malloc's heap, as a program's own objects do
  for (uint64_t bytes = 0; bytes < 64 * kMiB; bytes += kBlockBytes) {
    blocks.push_back(malloc(kBlockBytes));
    memset(blocks.back(), 1, kBlockBytes);
    between.push_back(malloc(2000));
    add(malloc_usable_size(blocks.back()));
  }
  for (void* block : blocks) {
    blocks_.remove(malloc_usable_size(block));
    free(block);
  }
  const uint64_t before = resident_bytes();
  EXPECT_GE(blocks_.trim(), 64 * kMiB);
  EXPECT_LT(resident_bytes() + 48 * kMiB, before);
  for (void* block : between) free(block);
}

TEST_F(MallocUseTest, BooksStayRightWhileOthersTrim) {
  constexpr int kThreads = 3;
  {
    std::vector<std::jthread> threads;
    for (uint64_t seed = 0; seed < kThreads; ++seed) {
      threads.emplace_back([this, seed] {
        Random random(seed);
        for (int round = 0; round < 2000; ++round) {
          const uint64_t bytes = random.between(1, 16 * kMiB);
          add(bytes);
          blocks_.remove(bytes);
          if (round % 3 == 0) blocks_.trim();
        }
      });
    }
  }
  EXPECT_EQ(blocks_.used(), 0u);
  EXPECT_EQ(blocks_.reserved(), budget_.used());
  blocks_.trim();
  EXPECT_LT(budget_.used(), 8 * kMiB);
}

}  // namespace
}  // namespace tencache
