// SPDX-License-Identifier: Apache-2.0
//
// SlotTimeline: a period of time cut into slots of whole ticks, at most kSlotsMax of them, and what
// is known of each: how long it lasts, how many bytes exceed or are left of the budget, and how
// much link time is still free. Slots are cyclic: after the last comes the first. A tick is looked
// at through its slot, so where a slot holds several ticks everything is rounded to the safe side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "learn/trace.h"

namespace tencache {

inline constexpr uint32_t kSlotsMax = 4096;

class SlotTimeline {
 public:
  explicit SlotTimeline(const Trace& trace);

  uint32_t count() const { return static_cast<uint32_t>(duration_ns_.size()); }
  uint32_t slot_of(Tick tick) const { return tick / ticks_per_slot_; }
  Tick first_tick(uint32_t slot) const { return slot * ticks_per_slot_; }
  uint64_t duration_ns(uint32_t slot) const { return duration_ns_[slot]; }
  uint32_t next(uint32_t slot) const { return slot + 1 == count() ? 0 : slot + 1; }
  uint32_t previous(uint32_t slot) const { return slot == 0 ? count() - 1 : slot - 1; }

  /// The largest entry of each slot.
  std::vector<uint64_t> maxima(const std::vector<uint64_t>& by_tick) const;

  /// The slots that lie wholly within an idle period, as the first of them and how many.
  struct Range {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  Range inside(const IdlePeriod& period) const;

  /// Calls visit(begin, end) for the slots of a range, in order of time; twice when it wraps.
  template <typename Visit>
  void for_each_span(const Range& range, Visit visit) const {
    const uint32_t first_count = std::min(range.count, count() - range.first);
    visit(range.first, range.first + first_count);
    if (range.count > first_count) visit(0u, range.count - first_count);
  }
  /// Calls visit(slot) for each of them.
  template <typename Visit>
  void for_each(const Range& range, Visit visit) const {
    for_each_span(range, [&](uint32_t begin, uint32_t end) {
      for (uint32_t slot = begin; slot < end; ++slot) visit(slot);
    });
  }

 private:
  uint32_t ticks_per_slot_ = 1;
  Tick tick_count_ = 0;
  std::vector<uint64_t> duration_ns_;
};

/// Free time of one link, slot by slot.
class LinkTime {
 public:
  explicit LinkTime(const SlotTimeline& timeline);

  /// How many slots, counted from `first` forwards, it takes to get `ns` of free time, within
  /// `count` slots; the last is used in part.
  std::optional<uint32_t> slots_forward(uint32_t first, uint32_t count, uint64_t ns) const;
  /// The same, counted backwards from the last of the `count` slots that begin with `first`.
  std::optional<uint32_t> slots_backward(uint32_t first, uint32_t count, uint64_t ns) const;

  void take_forward(uint32_t first, uint32_t count, uint64_t ns);
  void take_backward(uint32_t first, uint32_t count, uint64_t ns);

 private:
  const SlotTimeline* timeline_;
  std::vector<uint64_t> free_ns_;
};

}  // namespace tencache
