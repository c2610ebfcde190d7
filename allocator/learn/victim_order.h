// SPDX-License-Identifier: Apache-2.0
//
// VictimOrder: which of the tensors that could leave the device leaves first: the one needed last
// (Belady's rule) or the one used longest ago, and of equals the one with the lowest number.
//
// All uses of a period stand in one sequence, by tick. A tensor that could leave stands in it at
// the use that the rule looks at, its next or its last one. The victim is the first tensor met from
// the present tick on, backwards in time for next uses, forwards for last uses. So nothing has to
// be moved while ticks pass. Tensors without such a use stand beside the sequence and go first. The
// sequence itself, UsesByTick, never changes, so any thread may read it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "learn/number_set.h"
#include "learn/plan.h"
#include "learn/tensors_by_tick.h"
#include "learn/trace.h"

namespace tencache {

class UsesByTick {
 public:
  /// `uses` holds the ticks of each tensor, ascending.
  UsesByTick(const std::vector<std::vector<Tick>>& uses, Tick tick_count, Victim rule);

  uint32_t tensor_count() const { return tensor_count_; }
  uint32_t size() const { return row_.size(); }
  uint32_t tensor_at(uint32_t place) const { return row_[place]; }
  /// Where the tensor stands by this use. REQUIRES: the use is one of the tensor's.
  uint32_t place_of(uint32_t tensor, Tick use) const;
  /// The place that is occupied and met first from the tick on; a use at the tick is met last.
  std::optional<uint32_t> first_of(const NumberSet& occupied, Tick now) const;

 private:
  // Whether numbers ascend within a tick. Last uses are met from the start of the sequence on, next
  // uses from its end, and the lowest number of a tick must be met first.
  const bool is_ascending_;
  const uint32_t tensor_count_;
  TensorsByTick row_;  // the tensor of each use
};

class VictimOrder {
 public:
  /// The sequence outlives this.
  explicit VictimOrder(const UsesByTick& row);

  /// From now on the tensor could leave. `use` is its next or last use, as the rule has it, or
  /// kNoTick if there is none. REQUIRES: the tensor could not leave before, or stands at the same
  /// use.
  void add(uint32_t tensor, Tick use);
  /// Does what add() does, where the tensor's place in the sequence is known.
  void add_at(uint32_t tensor, uint32_t place) {
    place_[tensor] = place;
    in_row_.insert(place);
  }
  /// From now on the tensor could not leave, if it could before.
  void remove(uint32_t tensor);
  /// The tensor that leaves first at the op `now`. A tensor whose use is `now` itself comes last.
  std::optional<uint32_t> first(Tick now) const;

 private:
  static constexpr uint32_t kNowhere = ~uint32_t{0};
  static constexpr uint32_t kBeside = kNowhere - 1;

  const UsesByTick& row_;
  std::vector<uint32_t> place_;  // each tensor's in the sequence, or kBeside or kNowhere
  NumberSet in_row_;             // occupied places
  NumberSet beside_;             // tensors beside the sequence
};

}  // namespace tencache
