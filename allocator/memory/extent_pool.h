// SPDX-License-Identifier: Apache-2.0
//
// ExtentPool: the extents of one heap and the addresses of its arena, in granules. An extent object
// is never destroyed, so its address stays valid. One whose life has ended is Vacant and serves
// again.
//
// Threads: the heap locks.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/range_allocator.h"
#include "base/units.h"
#include "memory/extent.h"
#include "memory/heap.h"
#include "platform/address_arena.h"

namespace tencache {

template <typename ExtentType>
class ExtentPool {
 public:
  /// Hands out the addresses from `base` on.
  ExtentPool(char* base, uint64_t bytes) : base_(base), granules_(bytes / kGranuleBytes) {}

  /// Takes addresses that nobody uses. Returns nullopt when the arena is used up.
  std::optional<char*> take_addresses(uint64_t bytes) {
    const std::optional<uint64_t> granule = granules_.allocate(granules_of(bytes));
    if (!granule) return std::nullopt;
    return base_ + *granule * kGranuleBytes;
  }
  void give_back_addresses(const char* address, uint64_t bytes) {
    if (bytes == 0) return;
    granules_.free(static_cast<uint64_t>(address - base_) / kGranuleBytes, granules_of(bytes));
  }

  /// Takes a Vacant extent for these addresses.
  ExtentType* take(char* address, uint64_t bytes) {
    ExtentType* extent = nullptr;
    if (vacant_.empty()) {
      extent = &all_.emplace_back();
    } else {
      extent = vacant_.back();
      vacant_.pop_back();
    }
    Extent& common = *extent;
    common.address = address;
    common.bytes = bytes;
    return extent;
  }
  /// REQUIRES: it is Vacant.
  void give_back(ExtentType* extent) { vacant_.push_back(extent); }

  /// All of them, Vacant ones included.
  const std::deque<ExtentType>& all() const { return all_; }
  std::deque<ExtentType>& all() { return all_; }
  std::vector<ListedExtent> list() const {
    std::vector<ListedExtent> extents;
    extents.reserve(all_.size());
    for (const ExtentType& extent : all_) {
      extents.push_back({const_cast<ExtentType*>(&extent), extent.address, extent.bytes});
    }
    return extents;
  }

 private:
  friend struct HeapBooks;  // of the suites: walks over all of it

  static uint64_t granules_of(uint64_t bytes) {
    return round_up(bytes, kGranuleBytes) / kGranuleBytes;
  }

  char* const base_;
  RangeAllocator granules_;
  std::deque<ExtentType> all_;
  std::vector<ExtentType*> vacant_;
};

}  // namespace tencache
