// SPDX-License-Identifier: Apache-2.0
//
// RecordChoice: chooses which learned period is recorded: of several kinds the one that needs the
// most memory, and of that kind the newest period for the largest sizes. A first guess, made before
// a step had ended, may hold more ops than the step that follows from it, and more memory, and its
// times were hardly measured. So where a kind gets other ops, the newer ones are the better ones.
// The choice is among the kinds of all engines; each engine numbers its own.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/plan/learned_plan.h"

namespace tencache {

class RecordChoice {
 public:
  /// Returns whether this period takes the place of what was recorded before, and if so notes it as
  /// recorded. `ordinal` tells engines apart.
  bool takes(const LearnedPlan& learned, int ordinal = 0) {
    const uint64_t peak_bytes = learned.period->trace.peak_bytes();
    if (!is_newer(learned, ordinal) && peak_bytes < peak_bytes_) return false;
    ordinal_ = ordinal;
    kind_ = learned.number;
    period_ = learned.period;
    peak_bytes_ = peak_bytes;
    return true;
  }

 private:
  bool is_newer(const LearnedPlan& learned, int ordinal) const {
    if (period_ == nullptr || learned.number != kind_ || ordinal != ordinal_) return false;
    return !learned.period->is_same_loop(*period_) ||
           learned.period->born_bytes >= period_->born_bytes;
  }

  // What was recorded last.
  int ordinal_ = 0;
  uint64_t kind_ = 0;
  std::shared_ptr<const Period> period_;
  uint64_t peak_bytes_ = 0;
};

}  // namespace tencache
