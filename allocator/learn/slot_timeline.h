// SPDX-License-Identifier: Apache-2.0
//
// SlotTimeline: a period of time cut into slots of whole ticks, at most kSlotsMax of them. Slots
// are cyclic: after the last comes the first. A tick is looked at through its slot, so where a slot
// holds several ticks everything is rounded to the safe side. What is known of each slot stands in
// classes of its own: LinkTime and ExcessBytes. Both look at kBlockSlots slots at once where they
// can, for the planner asks about long ranges far more often than it changes anything.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "learn/trace.h"

namespace tencache {

inline constexpr uint32_t kSlotsMax = 4096;
inline constexpr uint32_t kBlockSlots = 32;

class SlotTimeline {
 public:
  /// As long as computing takes, and what each op waits before it, by tick; empty: none waits.
  explicit SlotTimeline(const Trace& trace, std::span<const uint64_t> stall_ns = {});

  uint32_t count() const { return static_cast<uint32_t>(duration_ns_.size()); }
  uint32_t block_count() const { return (count() + kBlockSlots - 1) / kBlockSlots; }
  uint32_t slot_of(Tick tick) const { return tick / ticks_per_slot_; }
  Tick first_tick(uint32_t slot) const { return slot * ticks_per_slot_; }
  uint64_t duration_ns(uint32_t slot) const { return duration_ns_[slot]; }
  uint32_t previous(uint32_t slot) const { return slot == 0 ? count() - 1 : slot - 1; }

  /// The largest entry of each slot.
  std::vector<uint64_t> maxima(const std::vector<uint64_t>& by_tick) const;

  /// Slots, as the first of them and how many.
  struct Range {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  /// The slots that lie wholly within an idle period.
  Range inside(const IdlePeriod& period) const;
  /// Calls visit(slot) for each slot of a range, in order of time.
  template <typename Visit>
  void for_each(const Range& range, Visit visit) const {
    for (const Span& span : spans(range)) {
      for (uint32_t slot = span.begin; slot < span.end; ++slot) visit(slot);
    }
  }

  /// Slots in a row.
  struct Span {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  /// A range in order of time: the second part, after the end of the period, is often empty.
  std::array<Span, 2> spans(const Range& range) const {
    const uint32_t first_count = std::min(range.count, count() - range.first);
    return {Span{range.first, range.first + first_count}, Span{0, range.count - first_count}};
  }
  std::array<Span, 2> spans_backward(const Range& range) const {
    const std::array<Span, 2> forward = spans(range);
    return {forward[1], forward[0]};
  }

 private:
  uint32_t ticks_per_slot_ = 1;
  Tick tick_count_ = 0;
  std::vector<uint64_t> duration_ns_;
};

}  // namespace tencache
