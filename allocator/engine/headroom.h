// SPDX-License-Identifier: Apache-2.0
//
// Headroom: the part of a budget that the migrator keeps free for the allocations to come, so that
// they need not wait, and that plans therefore do not count with. Constants and pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.h"

namespace tencache {

inline constexpr uint64_t kHeadroomShare = 32;
inline constexpr uint64_t kHeadroomBytesMax = kGiB;

constexpr uint64_t headroom_of(uint64_t budget_bytes) {
  return std::min(budget_bytes / kHeadroomShare, kHeadroomBytesMax);
}

/// A budget of which `bytes` are left besides its headroom.
constexpr uint64_t budget_with_headroom(uint64_t bytes) {
  return bytes + std::min(bytes / (kHeadroomShare - 1), kHeadroomBytesMax);
}

}  // namespace tencache
