// SPDX-License-Identifier: Apache-2.0
//
// RangeAllocator: hands out ranges of a one-dimensional space (file offsets of slots, granules of
// the address arena, blocks of host memory). It takes the best fit, the lowest offset among equals,
// and coalesces neighbours at once, so that the space neither grows nor fragments without need. A
// border separates ranges that are neighbours by number only. The class is not thread-safe: the
// owner locks.
//
// Invariants
// 1. Free ranges are disjoint, never adjacent, never empty.
// 2. free + used + borders + retired == limit().
// 3. No range crosses a border, which is one unit that is neither free nor used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace tencache {

class RangeAllocator {
 public:
  /// A space [0, limit) that is wholly free. Units are the owner's.
  explicit RangeAllocator(uint64_t limit);

  /// The offset of a free range of `length` units, or nullopt when none is long enough.
  /// REQUIRES: length > 0.
  std::optional<uint64_t> allocate(uint64_t length);

  /// Where allocate() would take a range from.
  std::optional<uint64_t> best_fit(uint64_t length) const;
  /// Takes exactly this range, which is free, wherever it lies in a longer one.
  void take(uint64_t offset, uint64_t length);
  /// The tightest `count_max` free ranges of at least this many units, as offset and length, the
  /// tightest first.
  std::vector<std::pair<uint64_t, uint64_t>> best_fits(uint64_t length, size_t count_max) const;

  /// Takes back a range from allocate() or take(), or a part of one. Freeing what is not in use
  /// aborts.
  void free(uint64_t offset, uint64_t length);

  /// Adds [limit(), new_limit) as free space. REQUIRES: new_limit >= limit().
  void grow(uint64_t new_limit);

  /// Adds a border and behind it `length` units of free space; returns the first offset behind the
  /// border. REQUIRES: length > 0.
  uint64_t grow_behind_border(uint64_t length);

  /// Whether a free range begins at `offset` and has this length.
  bool is_free_range(uint64_t offset, uint64_t length) const;
  /// Takes exactly this free range out of the space for good. Returns false, and changes nothing,
  /// unless is_free_range() holds for it.
  bool retire(uint64_t offset, uint64_t length);

  uint64_t limit() const { return limit_; }
  uint64_t used() const { return used_; }
  uint64_t largest_free() const;
  /// Length of the free range that ends at limit(), or 0 when the last unit is in use.
  uint64_t free_at_end() const;
  /// Checks the invariants by walking everything. Only tests and debug builds call this.
  bool is_valid() const;

 private:
  void insert_free(uint64_t offset, uint64_t length);
  void erase_free(uint64_t offset, uint64_t length);
  bool crosses_border(uint64_t offset, uint64_t length) const;

  uint64_t limit_;
  uint64_t used_ = 0;
  uint64_t retired_ = 0;
  std::map<uint64_t, uint64_t> free_by_offset_;             // offset -> length
  std::set<std::pair<uint64_t, uint64_t>> free_by_length_;  // (length, offset)
  std::vector<uint64_t> borders_;                           // ascending
};

}  // namespace tencache
