// SPDX-License-Identifier: Apache-2.0
//
// ExtentRoles: the role of each extent in a period (learn/period_builder.h lists the roles), worked
// out from one copy. It compares the copy with the ticks right before it, backwards from the ends
// of both. So it finds the successor of an extent that is freed in the copy, and the end of one
// that outlives it.
//
// Threads: an object belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "learn/period.h"
#include "learn/tick_log.h"

namespace tencache {

/// An extent that was allocated in the copy and is another one in each repetition. Ticks are
/// numbers in the log, within the copy.
struct Succession {
  enum class End : uint8_t {
    kInCopy,
    kInNextCopy,  // at the tick that corresponds to `freed`
    kLasts,       // until its successor comes
  };

  uint64_t extent_id = 0;
  uint64_t predecessor = 0;  // what was freed in the copy in its stead; 0: nothing that is known
  uint64_t bytes = 0;
  uint64_t born = 0;
  uint64_t freed = 0;
  End end = End::kInCopy;
};

class ExtentRoles {
 public:
  ExtentRoles(const TickLog& log, const PeriodPlace& place);

  /// Returns false when events of several threads were in the wrong order.
  bool is_consistent() const { return is_consistent_; }
  /// The successions, in the order of their allocation.
  const std::vector<Succession>& successions() const { return successions_; }
  /// Whether the extent was allocated in the copy, or right before it, and is always there from
  /// then on.
  bool is_made_once(uint64_t extent_id) const { return made_once_.contains(extent_id); }
  /// Whether the extent stems from an earlier repetition, and the copy before named another one at
  /// its place.
  bool is_exchanged(uint64_t extent_id) const { return exchanged_.contains(extent_id); }
  /// The tick in the copy in which the extent was freed, or kUnknownTick when it was not.
  uint64_t freed_in_copy(uint64_t extent_id) const;
  /// For each tick of the copy the one before the copy that corresponds to it, or kUnknownTick.
  const std::vector<uint64_t>& counterparts() const { return counterparts_; }

 private:
  bool is_within(uint64_t number) const { return number >= place_.begin && number < place_.end(); }
  uint64_t counterpart(uint64_t number) const { return counterparts_[number - place_.begin]; }
  void compare_with_before();
  void sort_out_births();
  void pair_by_place();
  void pair_by_size();
  void settle_open();
  void settle(Succession* open);
  void look_before_the_copy();
  void find_exchanged();
  void pair(Succession* open, uint64_t predecessor);
  std::optional<uint64_t> birth_like(const ExtentLife& life, uint64_t number) const;

  const TickLog& log_;
  const PeriodPlace place_;
  bool is_consistent_ = true;
  std::vector<uint64_t> counterparts_;
  std::unordered_map<uint64_t, uint64_t> copy_tick_of_;  // by counterpart
  std::vector<Succession> successions_;
  std::unordered_map<uint64_t, size_t> open_;  // places in successions_ of what outlives the copy
  std::unordered_map<uint64_t, uint64_t> last_uses_;  // in the copy, by extent
  std::unordered_set<uint64_t> made_once_;
  std::unordered_set<uint64_t> exchanged_;
  std::unordered_set<uint64_t> paired_;  // predecessors
};

}  // namespace tencache
