// SPDX-License-Identifier: Apache-2.0
//
// TraceIndex: what a simulation needs to know of a trace and no plan changes. That is who is born,
// needed and freed at each tick, and the sequences in which victims stand. A planner plays a trace
// a hundred times and works this out once. The index never changes. Threads: any.
#pragma once

#include <cstdint>
#include <span>

#include "learn/plan.h"
#include "learn/tensor_uses.h"
#include "learn/tensors_by_tick.h"
#include "learn/trace.h"
#include "learn/victim_order.h"

namespace tencache {

class TraceIndex {
 public:
  /// A tensor that an op names or allocates.
  struct Needed {
    uint32_t tensor = 0;
    uint32_t place = 0;  // in the sequence of next uses, once the op is over
  };

  /// The trace outlives this. REQUIRES: trace.validate() is ok.
  explicit TraceIndex(const Trace& trace);

  const Trace& trace() const { return trace_; }
  const TensorUses& uses() const { return uses_; }
  std::span<const uint32_t> born_at(Tick tick) const { return born_at_.at(tick); }
  std::span<const uint32_t> freed_at(Tick tick) const { return freed_at_.at(tick); }
  /// What the op names, then what it allocates.
  std::span<const Needed> needed_at(Tick tick) const { return needed_.at(tick); }
  const UsesByTick& row(Victim rule) const {
    return rule == Victim::kFarthestNextUse ? next_uses_ : last_uses_;
  }

 private:
  const Trace& trace_;
  const TensorUses uses_;
  TensorsByTick born_at_;
  TensorsByTick freed_at_;
  const UsesByTick next_uses_;
  const UsesByTick last_uses_;
  ByTick<Needed> needed_;
};

}  // namespace tencache
