// SPDX-License-Identifier: Apache-2.0
//
// CachedRuns: cached memory by the runs that it makes. Cached extents that are neighbours, and fill
// their granules, make one run, from which a request of another size can be cut. Runs are keyed by
// length, so that the tightest is found at once however much is cached.
//
// CachedRuns is not thread-safe: its owner locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/range_allocator.h"
#include "platform/address_arena.h"

namespace tencache {

class CachedRuns {
 public:
  /// Makes the runs of an arena of this many bytes at `base`, of which nothing is cached.
  CachedRuns(const char* base, uint64_t bytes) : base_(base), granules_(bytes / kGranuleBytes) {
    granules_.take(0, granules_.limit());
  }

  /// Adds memory that has become cached: as many granules of it as are whole. REQUIRES: the memory
  /// begins at a granule, and none of it is in a run.
  void add(const char* address, uint64_t bytes) {
    if (bytes >= kGranuleBytes) granules_.free(granule_of(address), bytes / kGranuleBytes);
  }
  /// Takes memory out that is no longer cached. REQUIRES: the memory is in runs.
  void take(const char* address, uint64_t bytes) {
    if (bytes >= kGranuleBytes) granules_.take(granule_of(address), bytes / kGranuleBytes);
  }

  /// The tightest runs of at least this many bytes, the very tightest first. REQUIRES: `bytes` is a
  /// multiple of kGranuleBytes.
  std::vector<std::span<const char>> tightest(uint64_t bytes, size_t count_max) const {
    std::vector<std::span<const char>> runs;
    for (const auto& [granule, count] : granules_.best_fits(bytes / kGranuleBytes, count_max)) {
      runs.emplace_back(base_ + granule * kGranuleBytes, count * kGranuleBytes);
    }
    return runs;
  }

  /// The bytes of all runs.
  uint64_t bytes() const { return (granules_.limit() - granules_.used()) * kGranuleBytes; }
  bool is_valid() const { return granules_.is_valid(); }

 private:
  uint64_t granule_of(const char* address) const {
    return static_cast<uint64_t>(address - base_) / kGranuleBytes;
  }

  const char* base_;
  RangeAllocator granules_;  // free: those in runs
};

}  // namespace tencache
