// SPDX-License-Identifier: Apache-2.0
//
// VictimOrder: which of the tensors that could leave the device leaves first: the one needed last
// (Belady's rule) or the one used longest ago, and of equals the one with the lowest number.
//
// All uses of a period stand in one row, by tick. A tensor that could leave stands in it at the use
// that the rule looks at, its next or its last one. The victim is the first tensor met from the
// present tick on, against the time for next uses, along with it for last uses. So nothing has to
// be moved while ticks pass. Tensors without such a use stand beside the row and go first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "learn/number_set.h"
#include "learn/plan.h"
#include "learn/trace.h"

namespace tencache {

class VictimOrder {
 public:
  /// `uses` holds the ticks of each tensor, ascending.
  VictimOrder(const std::vector<std::vector<Tick>>& uses, Tick tick_count, Victim rule);

  /// From now on the tensor could leave. `use` is its next or last use, as the rule has it, or
  /// kNoTick if there is none. REQUIRES: it could not leave before, or stands at the same use.
  void add(uint32_t tensor, Tick use);
  /// From now on it could not leave, if it could before.
  void remove(uint32_t tensor);
  /// The tensor that leaves first at the op `now`. A tensor whose use is `now` itself comes last.
  std::optional<uint32_t> first(Tick now) const;

 private:
  static constexpr uint32_t kNowhere = ~uint32_t{0};
  static constexpr uint32_t kBeside = kNowhere - 1;

  uint32_t place_of(uint32_t tensor, Tick use) const;

  // Last uses are met from the begin of the row on, next uses from its end; the lowest number of a
  // tick must be met first.
  const bool is_ascending_;
  std::vector<uint32_t> row_;        // the tensor of each use
  std::vector<uint32_t> row_begin_;  // where the uses of each tick begin, and the end
  std::vector<uint32_t> place_;      // each tensor's in the row, or kBeside or kNowhere
  NumberSet in_row_;                 // occupied places
  NumberSet beside_;                 // tensors beside the row
};

}  // namespace tencache
