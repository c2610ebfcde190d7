// SPDX-License-Identifier: Apache-2.0
//
// PeriodTimes: how long the newest whole periods of one kind took. Whatever else the machine does
// may disturb one period; it hardly touches the median of several.
//
// A plain value. Threads: those of its owner.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tencache {

class PeriodTimes {
 public:
  static constexpr size_t kKept = 5;

  void add(uint64_t ns) { newest_.at(added_++ % kKept) = ns; }

  /// How many times are kept.
  size_t count() const { return std::min(added_, kKept); }

  /// The median of the times that are kept, or the smaller of the middle two if their number is
  /// even. Returns 0 if there are none.
  uint64_t median_ns() const {
    if (added_ == 0) return 0;
    std::array<uint64_t, kKept> sorted = newest_;
    const auto end = sorted.begin() + static_cast<ptrdiff_t>(count());
    const auto middle = sorted.begin() + static_cast<ptrdiff_t>((count() - 1) / 2);
    std::nth_element(sorted.begin(), middle, end);
    return *middle;
  }

 private:
  std::array<uint64_t, kKept> newest_ = {};  // a ring
  size_t added_ = 0;
};

}  // namespace tencache
