// SPDX-License-Identifier: Apache-2.0
//
// The whole allocator through its parts' seams: bytes come back right whatever happened to them
// below, books agree, watermarks and callbacks work once.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support/test_engine.h"

namespace tencache {
namespace {

TEST(EngineTest, ColdExtentComesBackWithItsBytes) {
  TestEngine engine;
  char* address = engine.allocate(3 * kMiB);
  fill_pattern(address, 3 * kMiB, 1);
  engine.use({address}, AccessMode::kWrite);
  ASSERT_TRUE(engine.evict(address));
  EXPECT_TRUE(engine.is_cold(address));
  EXPECT_EQ(engine->budget().used(), 0u);
  EXPECT_EQ(engine.check_books(), "");
  {
    const GateScope op(engine, {address});
    EXPECT_TRUE(engine.is_resident(address));
    EXPECT_TRUE(has_pattern(address, 3 * kMiB, 1));
  }
  EXPECT_EQ(engine.check_books(), "");
  engine.free(address);
}

// An extent that lost its slot when it was freed must not be taken for a copy of it in its next
// life, even if its new bytes hash alike.
TEST(EngineTest, RecycledExtentIsNotPresumedEqualToASlotItLost) {
  TestEngine engine;
  char* first = engine.allocate(kMiB);
  memset(first, 7, kMiB);
  engine.use({first}, AccessMode::kWrite);
  ASSERT_TRUE(engine.evict(first));
  engine.use({first});
  engine.free(first);
  char* other = engine.allocate(2 * kMiB);  // takes the slot that became free
  fill_pattern(other, 2 * kMiB, 2);
  engine.use({other}, AccessMode::kWrite);
  ASSERT_TRUE(engine.evict(other));
  char* second = engine.allocate(kMiB);
  ASSERT_EQ(second, first) << "not recycled";
  memset(second, 7, kMiB);
  engine.use({second});
  ASSERT_TRUE(engine.evict(second));
  for (uint64_t offset = 0; offset < kMiB; ++offset) ASSERT_EQ(second[offset], 7) << offset;
  EXPECT_TRUE(has_pattern(other, 2 * kMiB, 2));
  EXPECT_EQ(engine.check_books(), "");
}

}  // namespace
}  // namespace tencache
