// SPDX-License-Identifier: Apache-2.0
//
// LinkTime: the free time of one link, slot by slot. Migrations take it away.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "learn/slot_timeline.h"

namespace tencache {

class LinkTime {
 public:
  /// All of the time is free. The timeline must outlive this.
  explicit LinkTime(const SlotTimeline& timeline);

  /// How many slots of the range, from its begin on, it takes to get `ns` of free time; the last
  /// is used in part. Nothing when the range does not have it.
  std::optional<uint32_t> slots_forward(const SlotTimeline::Range& range, uint64_t ns) const;
  /// The same, from the end of the range backwards.
  std::optional<uint32_t> slots_backward(const SlotTimeline::Range& range, uint64_t ns) const;

  /// Take that time, or all that there is.
  void take_forward(const SlotTimeline::Range& range, uint64_t ns);
  void take_backward(const SlotTimeline::Range& range, uint64_t ns);

 private:
  uint64_t take(uint32_t slot, uint64_t ns);

  const SlotTimeline* timeline_;
  std::vector<uint64_t> free_ns_;   // by slot
  std::vector<uint64_t> block_ns_;  // the sum of each block
};

}  // namespace tencache
