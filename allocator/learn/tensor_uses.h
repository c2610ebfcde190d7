// SPDX-License-Identifier: Apache-2.0
//
// TensorUses: the ticks at which each tensor of a trace is named or allocated, seen from a tick:
// which came last, which comes next, and until when the tensor's room could serve others. The
// object never changes. Threads: any.
#pragma once

#include <cstdint>
#include <vector>

#include "learn/trace.h"

namespace tencache {

class TensorUses {
 public:
  /// The trace outlives this.
  explicit TensorUses(const Trace& trace) : trace_(trace), uses_(uses_by_tensor(trace)) {}

  /// Whether an op names or allocates the tensor. Any other tensor cannot leave.
  bool is_named(uint32_t tensor) const { return !uses_[tensor].empty(); }
  /// The latest use up to the tick, perhaps in the repetition before. REQUIRES: is_named(tensor).
  Tick last_use(uint32_t tensor, Tick now) const;
  /// The first use after the tick, or kNoTick when the tensor is freed before that. REQUIRES:
  /// is_named(tensor).
  Tick next_use(uint32_t tensor, Tick now) const;
  /// The tick until which the tensor is idle: its next use, or its end if there is none. REQUIRES:
  /// is_named(tensor).
  Tick idle_until(uint32_t tensor, Tick now) const;
  /// Everything that idle_until() could return, by tensor, ascending.
  std::vector<std::vector<Tick>> ends_of_idleness() const;

 private:
  const Trace& trace_;
  const std::vector<std::vector<Tick>> uses_;
};

}  // namespace tencache
