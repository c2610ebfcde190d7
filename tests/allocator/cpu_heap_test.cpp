// SPDX-License-Identifier: Apache-2.0
//
// The heap's interface without an engine: small blocks and extents, the cache, the steps by which
// it makes room (Heap::climb()), and the errors where none helps. A RoomMaker of the test stands
// for the layer above.
#include "memory/cpu_heap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "base/units.h"
#include "support/accessible.h"
#include "support/heap_books.h"
#include "support/random.h"

namespace tencache {
namespace {

constexpr uint64_t kLimit = 64 * kMiB;

class PlayedRoomMaker final : public RoomMaker {
 public:
  bool make_room(uint64_t bytes, uint64_t, Status* reason) override {
    ++asked;
    *reason = failure;
    return on_ask && on_ask(bytes);
  }
  void on_attention() override { ++attentions; }
  std::string current_op() const override { return op; }
  void begin_wait(StreamSet) override {}
  void end_wait() override {}

  std::function<bool(uint64_t)> on_ask;
  Status failure;
  std::string op;
  int asked = 0;
  int attentions = 0;
};

class HeapTest : public ::testing::Test {
 protected:
  void SetUp() override { make({}); }

  void make(HeapConfig config, uint64_t arena_bytes = kGiB) {
    if (config.extent_min_bytes == HeapConfig{}.extent_min_bytes) {
      config.extent_min_bytes = kPageBytes;
    }
    heap_.reset();
    budget_.emplace(kLimit, kLimit * 7 / 10, stats_.peak_device_bytes);
    arena_ = std::move(AddressArena::reserve(arena_bytes, arena_bytes)).value();
    table_ = std::move(ExtentTable::create(arena_->base(), arena_->bytes())).value();
    heap_ = std::make_unique<CpuHeap>(config, *arena_, *table_, nullptr, nullptr, *budget_, stats_);
    heap_->set_room_maker(&room_maker_);
  }

  Allocation allocate(uint64_t bytes) {
    Result<Allocation> allocation = heap_->allocate(bytes);
    EXPECT_TRUE(allocation.is_ok()) << allocation.status().message();
    return allocation.is_ok() ? allocation.value() : Allocation{};
  }
  std::string refusal(uint64_t bytes) {
    const Result<Allocation> allocation = heap_->allocate(bytes);
    EXPECT_FALSE(allocation.is_ok());
    EXPECT_EQ(allocation.status().code(), StatusCode::kOutOfMemory);
    EXPECT_NE(allocation.status().message().find(" out of memory."), std::string::npos);
    return allocation.status().message();
  }

  Stats stats_;
  PlayedRoomMaker room_maker_;
  std::optional<Budget> budget_;
  std::unique_ptr<AddressArena> arena_;
  std::unique_ptr<ExtentTable> table_;
  std::unique_ptr<CpuHeap> heap_;
};
using HeapDeathTest = HeapTest;

TEST_F(HeapTest, SmallBlocksComeFromMallocAndCount) {
  const Allocation small = allocate(100);
  EXPECT_EQ(small.extent, nullptr);
  EXPECT_FALSE(arena_->contains(small.address));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small.address) % 64, 0u);
  EXPECT_EQ(budget_->used(), malloc_usable_size(small.address));
  memset(small.address, 1, 100);
  heap_->free(small.address);
  EXPECT_EQ(heap_->small_bytes(), 0u);
}

TEST_F(HeapTest, WhatMallocKeepsOfSmallBlocksGoesAfterTheCacheWhenRoomIsNeeded) {
  make({.extent_min_bytes = 64 * kMiB});
  const uint64_t small_bytes = 12 * kMiB;
  std::vector<void*> small;
  for (uint64_t bytes = 0; bytes < small_bytes; bytes += 64 * kKiB) {
    small.push_back(allocate(64 * kKiB).address);
  }
  for (void* address : small) heap_->free(address);
  EXPECT_GE(budget_->used(), small_bytes) << "no other use of those pages is possible";
  EXPECT_GE(heap_->drop_cached(kMiB), small_bytes);
  EXPECT_EQ(budget_->used(), 0u);
  EXPECT_EQ(heap_->drop_cached(kMiB), 0u);
}

TEST_F(HeapTest, ExtentsAreAlignedRoundedAndFoundByInteriorPointers) {
  const Allocation odd = allocate(3 * kMiB + 5);
  ASSERT_NE(odd.extent, nullptr);
  EXPECT_EQ(odd.extent->bytes, 3 * kMiB + kPageBytes);
  EXPECT_EQ(odd.extent->requested_bytes, 3 * kMiB + 5);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(odd.address) % kGranuleBytes, 0u);
  EXPECT_EQ(heap_->find(static_cast<char*>(odd.address) + 3 * kMiB), odd.extent);
  EXPECT_EQ(budget_->used(), odd.extent->bytes);
  EXPECT_EQ(odd.extent->state(), ExtentState::kResident);
  EXPECT_TRUE(HeapBooks::are_valid(*heap_));
}

TEST_F(HeapTest, FreedExtentWaitsForARequestOfItsSize) {
  const Allocation first = allocate(kMiB);
  const uint64_t id = first.extent->id;
  heap_->free(first.address);
  EXPECT_EQ(heap_->cached_bytes(), kMiB);
  EXPECT_EQ(budget_->used(), kMiB) << "the cache is part of the device tier's use";
  EXPECT_NE(allocate(kMiB + kPageBytes).address, first.address);
  const Allocation again = allocate(kMiB - 1);
  EXPECT_EQ(again.address, first.address);
  EXPECT_NE(again.extent->id, id);
  EXPECT_EQ(heap_->cached_bytes(), 0u);
  EXPECT_TRUE(HeapBooks::are_valid(*heap_));
}

TEST_F(HeapTest, NewestCachedExtentIsReusedAndOldestIsDropped) {
  std::vector<void*> addresses;
  for (int index = 0; index < 3; ++index) addresses.push_back(allocate(kMiB).address);
  for (void* address : addresses) heap_->free(address);
  EXPECT_EQ(heap_->drop_cached(1), kMiB);
  EXPECT_EQ(heap_->find(addresses[0]), nullptr);
  EXPECT_FALSE(is_readable(addresses[0]));
  EXPECT_EQ(budget_->used(), 2 * kMiB);
  EXPECT_EQ(allocate(kMiB).address, addresses[2]);
  EXPECT_EQ(heap_->drop_cached(~uint64_t{0}), kMiB);
  EXPECT_EQ(heap_->drop_cached(1), 0u);
  EXPECT_TRUE(HeapBooks::are_valid(*heap_));
}

TEST_F(HeapTest, OfALargeExtentOnlyTheFrontIsDropped) {
  const Allocation large = allocate(6 * kMiB + kMiB / 4);  // too small to get padding
  heap_->free(large.address);
  EXPECT_EQ(heap_->drop_cached(3 * kMiB), 4 * kMiB) << "whole granules";
  EXPECT_EQ(heap_->cached_bytes(), 2 * kMiB + kMiB / 4);
  EXPECT_EQ(budget_->used(), 2 * kMiB + kMiB / 4);
  EXPECT_FALSE(is_readable(static_cast<char*>(large.address) + 4 * kMiB - 1));
  EXPECT_TRUE(HeapBooks::are_valid(*heap_));
  EXPECT_EQ(allocate(2 * kMiB + kMiB / 4).address, static_cast<char*>(large.address) + 4 * kMiB);
}

TEST_F(HeapTest, PinnedCachedExtentIsNotDropped) {
  const Allocation pinned = allocate(kMiB);
  pinned.extent->pin();
  heap_->free(pinned.address);
  EXPECT_EQ(heap_->drop_cached(1), 0u);
  pinned.extent->unpin();
  EXPECT_EQ(heap_->drop_cached(1), kMiB);
}

uint64_t g_now_ns = 0;

TEST_F(HeapTest, CachedMemoryGoesWhenThePeakThatNeededItIsLongPast) {
  g_now_ns = 1;
  make({.clock = [] { return g_now_ns; }});
  std::vector<void*> addresses;
  for (int index = 0; index < 8; ++index) addresses.push_back(allocate(2 * kMiB).address);
  for (void* address : addresses) heap_->free(address);
  const auto let_a_window_pass = [this] {
    g_now_ns += LivePeak::kWindowNs;
    for (uint64_t free = 0; free < LivePeak::kWindowFrees; ++free) {
      heap_->free(allocate(2 * kMiB).address);
    }
  };
  let_a_window_pass();
  EXPECT_EQ(heap_->cached_bytes(), 16 * kMiB) << "the peak was in the window before";
  let_a_window_pass();
  EXPECT_EQ(heap_->cached_bytes(), 2 * kMiB);
  EXPECT_EQ(budget_->used(), 2 * kMiB);
  EXPECT_TRUE(HeapBooks::are_valid(*heap_));
}

TEST_F(HeapTest, FreshMemoryReplacesWhatIsCachedBeyondThePeak) {
  std::vector<void*> addresses;
  for (int index = 0; index < 3; ++index) addresses.push_back(allocate(kMiB).address);
  for (void* address : addresses) heap_->free(address);
  EXPECT_EQ(heap_->cached_bytes(), 3 * kMiB);
  allocate(2 * kMiB);  // whole granules, of which none is cached
  EXPECT_EQ(heap_->live_bytes(), 2 * kMiB);
  EXPECT_EQ(budget_->used(), 3 * kMiB) << "another would be more than a quarter beyond the peak";
  EXPECT_TRUE(HeapBooks::are_valid(*heap_));
}

TEST_F(HeapTest, EmptiedCacheGivesEverythingBack) {
  const Allocation kept = allocate(3 * kMiB);
  heap_->free(allocate(2 * kMiB).address);
  EXPECT_EQ(heap_->empty_cache(), 2 * kMiB);
  EXPECT_EQ(budget_->used(), 3 * kMiB);
  EXPECT_EQ(heap_->live_bytes(), 3 * kMiB);
  heap_->free(kept.address);
}

TEST_F(HeapTest, CacheServesBeforeRoomIsAskedFor) {
  const Allocation large = allocate(kLimit - kMiB);
  heap_->free(large.address);
  allocate(8 * kMiB);
  EXPECT_EQ(room_maker_.asked, 0);
  EXPECT_EQ(heap_->cached_bytes(), kLimit - 9 * kMiB);
  EXPECT_EQ(budget_->used(), kLimit - kMiB);
}

// A small block cannot use an extent's pages.
TEST_F(HeapTest, CacheGoesBeforeRoomIsAskedFor) {
  const Allocation large = allocate(kLimit - kPageBytes);
  heap_->free(large.address);
  const Allocation first = allocate(kPageBytes / 2);
  const Allocation second = allocate(kPageBytes - 64);
  EXPECT_EQ(room_maker_.asked, 0);
  EXPECT_EQ(heap_->cached_bytes(), kLimit - kPageBytes - kGranuleBytes);
  heap_->free(first.address);
  heap_->free(second.address);
}

TEST_F(HeapTest, RoomThatIsMadeIsTaken) {
  allocate(kLimit);
  room_maker_.on_ask = [this](uint64_t bytes) {
    budget_->release(bytes);  // as an eviction would
    return budget_->try_reserve(bytes);
  };
  allocate(kMiB);
  EXPECT_EQ(room_maker_.asked, 1);
  EXPECT_EQ(stats_.over_budget_events.load(), 0u);
}

TEST_F(HeapTest, WithoutRoomTheBudgetIsExceededAndCounted) {
  allocate(kLimit);
  allocate(2 * kMiB);
  allocate(kMiB);
  EXPECT_EQ(stats_.over_budget_events.load(), 2u);
  EXPECT_EQ(stats_.over_budget_peak_bytes.load(), 3 * kMiB);
  EXPECT_EQ(stats_.peak_device_bytes.load(), kLimit + 3 * kMiB);
}

TEST_F(HeapTest, WarningsNameOpAndBudgetAsTheExcessDoubles) {
  allocate(kLimit);
  const auto warning = [this](const char* op) {
    room_maker_.op = op;
    ::testing::internal::CaptureStderr();
    allocate(2 * kMiB);
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string first = warning("aten::mm");
  EXPECT_THAT(first, ::testing::HasSubstr("aten::mm"));
  EXPECT_THAT(first, ::testing::HasSubstr("exceeds the budget of 64.0 MiB by 2.00 MiB"));
  EXPECT_THAT(first, ::testing::HasSubstr("--device-memory 66MiB would hold it"));
  const std::string second = warning("aten::_fused_adam_");
  EXPECT_THAT(second, ::testing::HasSubstr("aten::_fused_adam_"));
  EXPECT_THAT(second, ::testing::HasSubstr("--device-memory 68MiB would hold it"));
  EXPECT_EQ(warning("aten::add"), "") << "hardly more";
  EXPECT_THAT(warning("aten::cat"), ::testing::HasSubstr("--device-memory 72MiB would hold it"));
}

TEST_F(HeapTest, DiskToBlameIsNamedInsteadOfGoingOverTheBudget) {
  allocate(kLimit);
  room_maker_.failure = Status(StatusCode::kNoSpace, "The disk tier in /d has no room.");
  const std::string text = refusal(kMiB);
  EXPECT_NE(text.find("Nothing can be spilled: The disk tier in /d has no room."),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find(".."), std::string::npos) << text;
  EXPECT_EQ(budget_->used(), kLimit);
  EXPECT_EQ(stats_.over_budget_events.load(), 0u);
}

TEST_F(HeapTest, WhatNoOpHasNamedLeavesBeforeTheBudgetIsExceeded) {
  const Allocation unseen = allocate(kLimit);
  room_maker_.on_ask = [&](uint64_t bytes) {
    if (!unseen.extent->has(kFlagSeen)) return false;
    budget_->release(bytes);  // as if it had left
    return budget_->try_reserve(bytes);
  };
  allocate(kMiB);
  EXPECT_EQ(stats_.over_budget_events.load(), 0u);
  EXPECT_EQ(room_maker_.asked, 2);
}

TEST_F(HeapTest, WhatNoOpHasNamedLeavesEachTimeThatNothingElseIsLeft) {
  room_maker_.on_ask = [&](uint64_t bytes) {
    for (const ListedExtent& listed : heap_->extents()) {
      if (!listed.extent->may_be_evicted() || !listed.extent->try_take_busy()) continue;
      budget_->release(listed.bytes);  // as if it had left; it stays busy, so it leaves once
      if (budget_->try_reserve(bytes)) return true;
    }
    return false;
  };
  for (int round = 0; round < 12; ++round) allocate(kLimit / 4);
  EXPECT_EQ(stats_.over_budget_events.load(), 0u);
  EXPECT_EQ(stats_.peak_device_bytes.load(), kLimit);
}

TEST_F(HeapTest, WarningBlamesSmallTensorsThatFillTheBudget) {
  make({.extent_min_bytes = 16 * kMiB});
  std::vector<void*> small;
  for (int count = 0; count < 7; ++count) small.push_back(allocate(8 * kMiB).address);
  ::testing::internal::CaptureStderr();
  for (int count = 0; count < 2; ++count) small.push_back(allocate(8 * kMiB).address);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("of tensors smaller than 16.0 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("--extent-min"), std::string::npos) << text;
  for (void* address : small) heap_->free(address);
}

TEST_F(HeapTest, StrictModeNamesOpBudgetAndWhatWouldDo) {
  make({.strict = true});
  room_maker_.op = "aten::addmm";
  allocate(kLimit - kMiB);
  const std::string text = refusal(4 * kMiB);
  EXPECT_NE(text.find("Tried to allocate 4.00 MiB in aten::addmm"), std::string::npos) << text;
  EXPECT_NE(text.find("63.0 MiB of the device budget of 64.0 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("would have fitted into 67MiB"), std::string::npos) << text;
  EXPECT_EQ(room_maker_.asked, 0);
  EXPECT_EQ(stats_.over_budget_events.load(), 0u);
  EXPECT_NE(allocate(kMiB).extent, nullptr) << "what fits is still served";
}

TEST_F(HeapTest, WhatNoMachineHoldsIsRefusedBeforeAnythingIsDropped) {
  make({.request_bytes_max = 512 * kMiB});
  heap_->free(allocate(kMiB).address);
  for (const uint64_t bytes : {512 * kMiB + 1, uint64_t{1} << 63, ~uint64_t{0}}) {
    const std::string text = refusal(bytes);
    EXPECT_NE(text.find("this machine holds at most 512 MiB"), std::string::npos) << text;
  }
  EXPECT_EQ(room_maker_.asked, 0);
  EXPECT_EQ(heap_->cached_bytes(), kMiB);
  EXPECT_EQ(stats_.over_budget_events.load(), 0u);
}

TEST_F(HeapTest, WithoutMappingsOrAddressesPlainMemoryServes) {
  make({.extent_count_max = 2});
  allocate(kMiB);
  allocate(kMiB);
  const Allocation plain = allocate(kMiB);
  EXPECT_EQ(plain.extent, nullptr);
  EXPECT_GE(budget_->used(), 3 * kMiB);
  heap_->free(plain.address);
  EXPECT_EQ(heap_->small_bytes(), 0u);
  make({}, 4 * kGranuleBytes);
  for (int index = 0; index < 4; ++index) ASSERT_NE(allocate(kPageBytes).extent, nullptr);
  const Allocation without_addresses = allocate(kPageBytes);
  EXPECT_EQ(without_addresses.extent, nullptr);
  heap_->free(without_addresses.address);
  EXPECT_TRUE(HeapBooks::are_valid(*heap_));
}

TEST_F(HeapTest, AttentionIsCalledAboveTheMark) {
  allocate(kLimit / 2);
  EXPECT_EQ(room_maker_.attentions, 0);
  allocate(kLimit / 4);
  EXPECT_EQ(room_maker_.attentions, 1);
}

TEST_F(HeapTest, PassiveHeapServesFromMallocAndKeepsNoBooks) {
  const Allocation extent = allocate(kMiB);
  const Allocation small = allocate(100);
  const uint64_t used = budget_->used();
  heap_->become_passive();
  const Allocation later = allocate(kMiB);
  EXPECT_EQ(later.extent, nullptr);
  heap_->free(later.address);
  heap_->free(extent.address);
  heap_->free(small.address);
  EXPECT_EQ(budget_->used(), used);
}

TEST_F(HeapTest, NullIsFreedSilently) {
  heap_->free(nullptr);
  EXPECT_EQ(budget_->used(), 0u);
}

TEST_F(HeapDeathTest, WrongFreesAreNamed) {
  const Allocation extent = allocate(kMiB);
  EXPECT_DEATH(heap_->free(static_cast<char*>(extent.address) + 64), "free of 0x");
  EXPECT_DEATH(heap_->free(arena_->base() + kGiB - kGranuleBytes), "free of 0x");
  heap_->free(extent.address);
  EXPECT_DEATH(heap_->free(extent.address), "double free of 0x");
}

TEST_F(HeapTest, ThreadsKeepTheBooksRight) {
  {
    std::vector<std::jthread> threads;
    for (uint64_t index = 0; index < 4; ++index) {
      threads.emplace_back([this, index] {
        Random random(index);
        std::vector<void*> live;
        for (int round = 0; round < 3000; ++round) {
          if (live.size() < 10 && random.chance(0.6)) {
            live.push_back(allocate(random.between(1, 20) * kPageBytes / 2).address);
            memset(live.back(), 1, 8);
          } else if (!live.empty()) {
            heap_->free(live.back());
            live.pop_back();
          }
          if (round % 50 == 0) heap_->drop_cached(random.between(1, kMiB));
        }
        for (void* address : live) heap_->free(address);
      });
    }
  }
  EXPECT_TRUE(HeapBooks::are_valid(*heap_));
  EXPECT_EQ(budget_->used(), heap_->cached_bytes() + HeapBooks::malloc_use(*heap_).reserved());
  heap_->drop_cached(~uint64_t{0});
  EXPECT_EQ(heap_->small_bytes(), 0u);
  EXPECT_EQ(budget_->used(), HeapBooks::malloc_use(*heap_).reserved());
  EXPECT_EQ(heap_->extent_count(), 0u);
}

}  // namespace
}  // namespace tencache
