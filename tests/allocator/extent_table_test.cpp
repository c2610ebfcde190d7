// SPDX-License-Identifier: Apache-2.0
//
// Address to extent: borders, interior pointers, addresses of others.
#include "memory/extent_table.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "base/units.h"

namespace tencache {
namespace {

class ExtentTableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    arena_ = std::move(AddressArena::reserve(64 * kMiB, 64 * kMiB)).value();
    table_ = std::move(ExtentTable::create(arena_->base(), arena_->bytes())).value();
  }
  char* granule(uint64_t index) const { return arena_->base() + index * kGranuleBytes; }

  std::unique_ptr<AddressArena> arena_;
  std::unique_ptr<ExtentTable> table_;
  Extent extent_;
  Extent other_;
};

TEST_F(ExtentTableTest, FindsInteriorPointersUpToTheLastGranule) {
  const uint64_t bytes = 2 * kGranuleBytes + kPageBytes;
  table_->set(granule(3), bytes, &extent_);
  table_->set(granule(6), kPageBytes, &other_);
  EXPECT_EQ(table_->find(granule(3)), &extent_);
  EXPECT_EQ(table_->find(granule(3) + bytes - 1), &extent_);
  EXPECT_EQ(table_->find(granule(3) - 1), nullptr);
  EXPECT_EQ(table_->find(granule(6)), &other_);
  EXPECT_EQ(table_->find(granule(7)), nullptr);
  table_->set(granule(3), bytes, nullptr);
  EXPECT_EQ(table_->find(granule(5)), nullptr);
  EXPECT_EQ(table_->find(granule(6)), &other_);
}

TEST_F(ExtentTableTest, KnowsNothingOutsideTheArena) {
  table_->set(granule(0), kGranuleBytes, &extent_);
  table_->set(granule(31), kGranuleBytes, &other_);
  EXPECT_EQ(table_->find(granule(0) - 1), nullptr);
  EXPECT_EQ(table_->find(granule(32) - 1), &other_);
  EXPECT_EQ(table_->find(granule(32)), nullptr);
  EXPECT_EQ(table_->find(nullptr), nullptr);
  EXPECT_EQ(table_->find(reinterpret_cast<const void*>(UINTPTR_MAX)), nullptr);
  EXPECT_EQ(table_->find(&extent_), nullptr);
}

}  // namespace
}  // namespace tencache
