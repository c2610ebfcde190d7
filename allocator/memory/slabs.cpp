// SPDX-License-Identifier: Apache-2.0
#include "memory/slabs.h"

#include "base/check.h"

namespace tencache {
namespace {

// Cold slabs are passed over, but at most this many are looked at.
constexpr int kSlabsLookedAtMax = 64;

constexpr uint64_t pages_for(uint64_t bytes) { return round_up(bytes, kPageBytes) / kPageBytes; }

}  // namespace

std::optional<Allocation> Slabs::cut(uint64_t bytes) {
  const uint64_t page_count = pages_for(bytes);
  MutexLock lock(mutex_);
  Slab* const slab = find_room(page_count);
  if (slab == nullptr) return std::nullopt;
  return cut_from(*slab, page_count);
}

Allocation Slabs::cut_from_new(Extent* extent, uint64_t bytes) {
  TENCACHE_CHECK(extent->bytes == kSlabBytes, "%lu", extent->bytes);
  extent->is_slab.store(true, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  auto made = std::make_unique<Slab>(extent);
  Slab& slab = *made;
  slabs_.emplace(extent->address, std::move(made));
  list(slab);
  return cut_from(slab, pages_for(bytes));
}

bool Slabs::free(Extent* slab_extent, const char* address) {
  MutexLock lock(mutex_);
  const auto found = slabs_.find(slab_extent->address);
  TENCACHE_CHECK(found != slabs_.end(), "free of %p", static_cast<const void*>(address));
  Slab& slab = *found->second;
  const auto distance = static_cast<uint64_t>(address - slab.extent->address);
  const auto block = slab.blocks.find(distance / kPageBytes);
  TENCACHE_CHECK(block != slab.blocks.end() && distance % kPageBytes == 0, "free of %p",
                 static_cast<const void*>(address));
  unlist(slab);
  slab.pages.free(block->first, block->second);
  slab.blocks.erase(block);
  if (!slab.blocks.empty()) {
    list(slab);
    return false;
  }
  if (newest_ == &slab) newest_ = nullptr;
  slabs_.erase(found);
  slab_extent->is_slab.store(false, std::memory_order_relaxed);
  return true;
}

Slabs::Slab* Slabs::find_room(uint64_t page_count) {
  const auto serves_now = [&](const Slab& slab) {
    return slab.pages.largest_free() >= page_count && Extent::usable_in(slab.extent->state());
  };
  if (newest_ != nullptr && serves_now(*newest_)) return newest_;
  auto candidate = by_room_.lower_bound({page_count, nullptr});
  for (int looks = 0; candidate != by_room_.end() && looks < kSlabsLookedAtMax;
       ++candidate, ++looks) {
    Slab& slab = *slabs_.at(candidate->second);
    if (serves_now(slab)) return &slab;
  }
  return nullptr;
}

Allocation Slabs::cut_from(Slab& slab, uint64_t page_count) {
  unlist(slab);
  const std::optional<uint64_t> page = slab.pages.allocate(page_count);
  TENCACHE_CHECK(page.has_value(), "%lu pages", page_count);
  slab.blocks.emplace(*page, page_count);
  list(slab);
  newest_ = &slab;
  // The block's owner writes it before any op announces that, and a slot may hold the slab as it
  // was.
  slab.extent->set_flags(kFlagDirty);
  return {slab.extent->address + *page * kPageBytes, slab.extent};
}

void Slabs::list(const Slab& slab) {
  const uint64_t largest = slab.pages.largest_free();
  if (largest > 0) by_room_.insert({largest, slab.extent->address});
}

void Slabs::unlist(const Slab& slab) {
  by_room_.erase({slab.pages.largest_free(), slab.extent->address});
}

}  // namespace tencache
