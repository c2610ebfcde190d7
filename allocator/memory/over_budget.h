// SPDX-License-Identifier: Apache-2.0
//
// StuckBytes: what stands in the budget and cannot leave, so that the warning about an exceeded
// budget names the true cause. The figures are guesses of one moment: extents change while they are
// added up.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "memory/heap.h"

namespace tencache {

struct StuckBytes {
  uint64_t in_use = 0;   // pinned by ops and holds
  uint64_t kept = 0;     // resident for good: their op keeps addresses
  uint64_t unnamed = 0;  // no op has named them
  uint64_t small = 0;    // blocks below the extent threshold
  uint64_t written = 0;  // pages of cold extents that the program wrote without an op
};

StuckBytes add_up_stuck(std::span<const ListedExtent> extents, uint64_t small_bytes,
                        uint64_t written_bytes);

/// The subject of "... exceeds the budget": what most of the stuck bytes are.
std::string cause_of_excess(const StuckBytes& stuck, uint64_t extent_min_bytes);
/// What helps against this cause besides a larger budget, as the end of a sentence. Returns an
/// empty string when nothing helps. `may_be_smaller` tells whether --extent-min may be less than it
/// is.
std::string remedy_for_excess(const StuckBytes& stuck, bool may_be_smaller);

}  // namespace tencache
