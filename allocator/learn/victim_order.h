// SPDX-License-Identifier: Apache-2.0
//
// VictimOrder: of the tensors that could leave the device, who leaves first: who is needed last
// (Belady's rule) or who was used longest ago, and of equals the one with the lowest number.
//
// All uses of a period stand in one row, by tick. A tensor that could leave stands in it at the use
// that the rule looks at, its next or its last one; the victim is whoever is met first from the
// present tick on, against the time for next uses, along with it for last uses. So nobody has to be
// moved while ticks pass. Those that have no such use stand beside the row and go first.
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

  /// From now on the tensor could leave. `use` is its next or its last use, as the rule has it, or
  /// kNoTick when there is none. REQUIRES: it could not leave before, or stands at the same use.
  void add(uint32_t tensor, Tick use);
  /// From now on it could not, if it could before.
  void remove(uint32_t tensor);
  /// Who leaves first at the op `now`. A tensor whose use is `now` itself comes last.
  std::optional<uint32_t> first(Tick now) const;

 private:
  static constexpr uint32_t kNowhere = ~uint32_t{0};
  static constexpr uint32_t kBeside = kNowhere - 1;

  uint32_t place_of(uint32_t tensor, Tick use) const;

  // Last uses are met from the begin of the row on, next uses from its end; the lowest number of a
  // tick is to be met first.
  const bool is_ascending_;
  std::vector<uint32_t> row_;        // the tensor of each use
  std::vector<uint32_t> row_begin_;  // where the uses of each tick begin, and the end
  std::vector<uint32_t> place_;      // of each tensor in the row, kBeside or kNowhere
  NumberSet in_row_;                 // places at which somebody stands
  NumberSet beside_;                 // tensors that stand there
};

}  // namespace tencache
