// SPDX-License-Identifier: Apache-2.0
//
// cached_pages(): counts the pages of a slot that the page cache holds.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tier/disk_tier.h"

namespace tencache {

inline size_t cached_pages(const DiskTier& tier, const Slot& slot) {
  void* mapped =
      mmap(nullptr, slot.bytes, PROT_READ, MAP_SHARED, tier.fd(), static_cast<off_t>(slot.offset));
  EXPECT_NE(mapped, MAP_FAILED);
  std::vector<unsigned char> pages(slot.bytes / 4096);
  EXPECT_EQ(mincore(mapped, slot.bytes, pages.data()), 0);
  munmap(mapped, slot.bytes);
  return static_cast<size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

}  // namespace tencache
