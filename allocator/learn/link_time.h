// SPDX-License-Identifier: Apache-2.0
//
// LinkTime: the free time of one link, bin by bin. Moves take it away.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "learn/bin_timeline.h"

namespace tencache {

class LinkTime {
 public:
  /// At first all time is free. The timeline must outlive this object.
  explicit LinkTime(const BinTimeline& timeline);

  /// How many bins from the start of the range on it takes to get `ns` of free time, the last one
  /// in part. Nullopt when the range does not have that much.
  std::optional<uint32_t> bins_forward(const BinTimeline::Range& range, uint64_t ns) const;
  /// The same, from the end of the range backwards.
  std::optional<uint32_t> bins_backward(const BinTimeline::Range& range, uint64_t ns) const;

  /// These take that time, or all that there is.
  void take_forward(const BinTimeline::Range& range, uint64_t ns);
  void take_backward(const BinTimeline::Range& range, uint64_t ns);

 private:
  uint64_t take(uint32_t bin, uint64_t ns);

  const BinTimeline* timeline_;
  std::vector<uint64_t> free_ns_;   // by bin
  std::vector<uint64_t> block_ns_;  // by block: the sum of its bins
};

}  // namespace tencache
