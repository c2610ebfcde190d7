// SPDX-License-Identifier: Apache-2.0
//
// Finding the extents of a stored period: by size and place at first, by themselves from then on;
// what is freed, what was a wrong guess, what the first repetition makes besides. Nothing grows in
// a long run, and an op that comes again allocates nothing.
#include "engine/plan/stored_roles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "base/sanitizers.h"
#include "learn/tick_digest.h"

namespace {

thread_local uint64_t allocation_count = 0;

}  // namespace

// ThreadSanitizer's library has operators new and delete of its own.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TENCACHE_NEW_IS_TAKEN 1
#endif
#endif

#ifndef TENCACHE_NEW_IS_TAKEN
// The whole suite allocates here.
void* operator new(size_t bytes) {
  ++allocation_count;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { std::free(memory); }
#endif

namespace tencache {
namespace {

using Unknown = StoredRoles::Unknown;

constexpr uint64_t kBytes = 1 << 20;
constexpr uint32_t kLayers = 8;

/// A period that names each of eight tensors, all of one size, and then two at a time.
class StoredRolesTest : public ::testing::Test {
 protected:
  StoredRolesTest() {
    auto period = std::make_shared<Period>();
    period->trace.op_names = {"op"};
    for (uint32_t tensor = 0; tensor < kLayers; ++tensor) {
      period->trace.tensors.push_back({kBytes, kNoTick, kNoTick});
      period->extent_ids.push_back(kUnknownExtent);
      add_tick(period.get(), {tensor});
    }
    for (uint32_t tensor = 0; tensor + 1 < kLayers; tensor += 2) {
      add_tick(period.get(), {tensor, tensor + 1});
    }
    period_ = period;
    roles_ = std::make_unique<StoredRoles>(period_);
    for (size_t index = 0; index < extents_.size(); ++index) {
      extents_[index].id = index + 1;
      extents_[index].bytes = kBytes;
      extents_[index].commit();
    }
  }

  static void add_tick(Period* period, const std::vector<uint32_t>& tensors) {
    TraceOp op{0, 1000, {}};
    for (const uint32_t tensor : tensors) op.accesses.push_back({tensor, false});
    period->trace.ops.push_back(op);
    period->digests.push_back(digest(tensors.size()));
  }
  static uint64_t digest(size_t count) {
    TickDigest value(1);
    for (size_t index = 0; index < count; ++index) value.add(false);
    return value.value();
  }

  bool agrees(Tick tick, std::vector<Extent*> extents, Unknown unknown = Unknown::kMayBeIt) {
    return roles_->agrees(tick, digest(extents.size()), extents, unknown);
  }
  void follow(Tick tick, std::vector<Extent*> extents) { roles_->follow(tick, extents); }
  void see(std::vector<Extent*> extents) { roles_->see(digest(extents.size()), extents); }
  void follow_all_layers() {
    roles_->take_place(0);
    for (uint32_t layer = 0; layer < kLayers; ++layer) follow(layer, {&extents_[layer]});
  }
  size_t count_unknown() const {
    return static_cast<size_t>(std::ranges::count(roles_->extent_ids(), kUnknownExtent));
  }

  std::shared_ptr<const Period> period_;
  std::unique_ptr<StoredRoles> roles_;
  std::array<Extent, 2 * kLayers> extents_;
};

TEST_F(StoredRolesTest, AnExtentIsFoundBySizeAndKnownFromThenOn) {
  EXPECT_TRUE(roles_->is_blank());
  extents_[1].bytes = 2 * kBytes;
  EXPECT_FALSE(agrees(0, {&extents_[1]})) << "another size";
  extents_[1].bytes = kBytes;
  EXPECT_TRUE(agrees(0, {&extents_[1]}));
  EXPECT_FALSE(roles_->agrees(0, digest(2), std::vector<Extent*>{&extents_[1]}, Unknown::kMayBeIt))
      << "another op";
  follow(0, {&extents_[0]});
  EXPECT_FALSE(roles_->is_blank());
  EXPECT_TRUE(agrees(0, {&extents_[0]}));
  EXPECT_FALSE(agrees(0, {&extents_[1]})) << "the place is taken";
  EXPECT_FALSE(agrees(1, {&extents_[0]})) << "the extent is taken";
  EXPECT_EQ(roles_->extent_ids()[0], 1u);
  EXPECT_EQ(count_unknown(), kLayers - 1);
}

TEST_F(StoredRolesTest, OneExtentStandsForOneTensorWithinAnOp) {
  EXPECT_FALSE(agrees(kLayers, {&extents_[0], &extents_[0]}));
  EXPECT_TRUE(agrees(kLayers, {&extents_[0], &extents_[1]}));
}

TEST_F(StoredRolesTest, ACautiousLookNeedsAKnownExtentBesides) {
  EXPECT_FALSE(agrees(kLayers, {&extents_[0], &extents_[1]}, Unknown::kBesideKnown));
  follow(0, {&extents_[0]});
  EXPECT_TRUE(agrees(kLayers, {&extents_[0], &extents_[1]}, Unknown::kBesideKnown));
  EXPECT_FALSE(agrees(1, {&extents_[1]}, Unknown::kBesideKnown));
}

TEST_F(StoredRolesTest, TheSuccessorOfAFreedExtentIsFoundAnew) {
  follow_all_layers();
  EXPECT_FALSE(agrees(0, {&extents_[kLayers]}));
  extents_[0].retire();
  EXPECT_EQ(roles_->extent_ids()[0], kUnknownExtent);
  EXPECT_TRUE(agrees(0, {&extents_[kLayers]}));
  follow(0, {&extents_[kLayers]});
  EXPECT_EQ(roles_->extent_ids()[0], kLayers + 1);
}

// The program makes a tensor anew in each repetition, for as long as it runs.
TEST_F(StoredRolesTest, WhatWasFreedIsForgotten) {
  follow_all_layers();
  for (uint64_t id = 100; id < 1000; ++id) {
    extents_[0].retire();
    extents_[0].id = id;
    extents_[0].revive();
    ASSERT_TRUE(agrees(0, {&extents_[0]}));
    follow(0, {&extents_[0]});
    ASSERT_EQ(roles_->tensor_of(id), 0u);
    ASSERT_EQ(roles_->tensor_of(id == 100 ? 1 : id - 1), std::nullopt) << "its predecessor";
  }
  EXPECT_EQ(count_unknown(), 0u);
  roles_->give_up();
  EXPECT_EQ(roles_->tensor_of(999), 0u) << "its place was held for long";
}

TEST_F(StoredRolesTest, OnlyWhatWasFoundAtAWrongPlaceIsForgottenWithIt) {
  follow_all_layers();
  roles_->give_up();
  extents_[0].retire();
  roles_->take_place(0);
  follow(0, {&extents_[kLayers]});
  EXPECT_EQ(count_unknown(), 0u);
  roles_->give_up();
  EXPECT_EQ(count_unknown(), 1u);
  EXPECT_EQ(roles_->tensor_of(kLayers + 1), std::nullopt);
  EXPECT_EQ(roles_->tensor_of(2), 1u);
}

TEST_F(StoredRolesTest, TicksThatComeAgainAllocateNothing) {
  if (kHasThreadSanitizer) GTEST_SKIP() << "allocations are not counted here";
  const std::vector<Extent*> pair = {&extents_[0], &extents_[1]};
  const std::vector<Extent*> other = {&extents_[1], &extents_[0]};
  roles_->take_place(0);
  for (Tick round = 0; round < 2; ++round) {
    const uint64_t before = allocation_count;
    EXPECT_TRUE(roles_->agrees(kLayers, digest(2), pair, Unknown::kMayBeIt));
    roles_->follow(kLayers, pair);
    EXPECT_FALSE(roles_->agrees(kLayers, digest(2), other, Unknown::kMayBeIt));
    if (round == 0) {
      EXPECT_GT(allocation_count, before) << "what was found is noted";
    } else {
      EXPECT_EQ(allocation_count, before) << "on the path of every op";
    }
  }
  roles_->give_up();
  for (int tick = 0; tick < 4; ++tick) roles_->see(digest(2), pair);
  const uint64_t before = allocation_count;
  for (int tick = 0; tick < 100; ++tick) {
    roles_->see(digest(2), pair);
    roles_->fits_seen(kLayers);
  }
  EXPECT_EQ(allocation_count, before) << "while there is no place";
}

TEST_F(StoredRolesTest, APlaceThatIsGivenUpSoonWasAWrongOne) {
  roles_->take_place(0);
  follow(0, {&extents_[3]});
  roles_->give_up();
  EXPECT_TRUE(roles_->is_blank());
  EXPECT_TRUE(agrees(3, {&extents_[3]}));
  follow_all_layers();
  roles_->give_up();
  EXPECT_EQ(count_unknown(), 0u) << "it was held for long";
}

TEST_F(StoredRolesTest, TicksSeenBeforeThePlaceCount) {
  for (uint32_t layer = 0; layer < 3; ++layer) see({&extents_[layer]});
  roles_->take_place(3);
  EXPECT_EQ(count_unknown(), kLayers - 3);
  EXPECT_EQ(roles_->extent_ids()[2], 3u);
}

TEST_F(StoredRolesTest, TheTicksSeenTellWhetherAPlaceFits) {
  for (uint32_t layer = 0; layer < 2; ++layer) see({&extents_[layer]});
  EXPECT_FALSE(roles_->fits_seen(2)) << "too few";
  extents_[2].bytes = 2 * kBytes;
  see({&extents_[2]});
  EXPECT_FALSE(roles_->fits_seen(3)) << "one of another size";
  for (uint32_t layer = 3; layer < 6; ++layer) see({&extents_[layer]});
  EXPECT_TRUE(roles_->fits_seen(3));
  EXPECT_FALSE(roles_->fits_seen(0)) << "other ops before it";
  follow(2, {&extents_[0]});
  EXPECT_FALSE(roles_->fits_seen(3)) << "that tensor is another extent";
}

// In the middle of a row of layers that look alike, the ticks before are of the period, too.
TEST_F(StoredRolesTest, TheFirstStepBeginsAfterSomethingElse) {
  for (uint32_t layer = 0; layer < 4; ++layer) see({&extents_[layer]});
  EXPECT_TRUE(roles_->fits_seen(3));
  EXPECT_FALSE(roles_->has_begun_at(3));
  roles_->forget_seen();
  roles_->see(4711, std::vector<Extent*>{&extents_[9]});
  for (uint32_t layer = 0; layer < 3; ++layer) {
    EXPECT_FALSE(roles_->has_begun_at(3));
    see({&extents_[layer]});
  }
  EXPECT_TRUE(roles_->has_begun_at(3));
  EXPECT_FALSE(roles_->has_begun_at(4));
}

TEST_F(StoredRolesTest, WhatIsNoLongerTheTickBeforeDoesNotCount) {
  see({&extents_[2]});
  roles_->forget_seen();
  roles_->take_place(3);
  EXPECT_TRUE(roles_->is_blank());
}

TEST_F(StoredRolesTest, EverythingIsForgottenWhenNothingFitsForAPeriod) {
  follow_all_layers();
  roles_->give_up();
  for (size_t tick = 0; tick <= period_->digests.size(); ++tick) {
    EXPECT_FALSE(roles_->is_blank());
    see({});
  }
  EXPECT_TRUE(roles_->is_blank());
}

TEST_F(StoredRolesTest, WhatIsMadeOnceIsPassedOverForAWhile) {
  const std::vector<Extent*> made = {&extents_[kLayers]};
  EXPECT_FALSE(roles_->passes_over(made)) << "no place was held";
  roles_->take_place(0);
  for (uint32_t layer = 0; layer + 1 < kLayers; ++layer) follow(layer, {&extents_[layer]});
  EXPECT_FALSE(roles_->passes_over(std::vector<Extent*>{&extents_[0]})) << "it is known";
  size_t passed = 0;
  while (passed < 1000 && roles_->passes_over(made)) ++passed;
  EXPECT_GE(passed, 1u);
  EXPECT_LT(passed, 1000u);
  follow(kLayers - 1, {&extents_[kLayers - 1]});
  EXPECT_EQ(count_unknown(), 0u);
}

}  // namespace
}  // namespace tencache
