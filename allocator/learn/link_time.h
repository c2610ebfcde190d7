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
  using From = BinTimeline::From;

  /// At first all time is free. The timeline must outlive this object.
  explicit LinkTime(const BinTimeline& timeline);

  /// How many bins, from the start of the range on or from its end backwards, it takes to get `ns`
  /// of free time, the last one in part. Returns nullopt when the range does not have that much.
  std::optional<uint32_t> bins(const BinTimeline::Range& range, uint64_t ns, From from) const;
  /// Takes `ns` of free time likewise, or all that there is.
  void take(const BinTimeline::Range& range, uint64_t ns, From from);

 private:
  const BinTimeline* timeline_;
  std::vector<uint64_t> free_ns_;   // by bin
  std::vector<uint64_t> block_ns_;  // by block: the sum of its bins
};

}  // namespace tencache
