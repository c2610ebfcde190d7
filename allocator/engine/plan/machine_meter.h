// SPDX-License-Identifier: Apache-2.0
//
// MachineMeter: measures what a plan may count on now: the room on the device, the speed of each
// link, and the processor time that a moved byte costs.
//
// Threads: the learner's.
#pragma once

#include <cstdint>

#include "engine/parts.h"
#include "engine/plan/processor_use.h"
#include "learn/period.h"
#include "learn/plan.h"

namespace tencache {

class MachineMeter {
 public:
  explicit MachineMeter(const Parts& parts) : parts_(parts) {}

  Machine measure();
  /// The bytes on the device that cannot leave, besides those of the period that is to be planned.
  uint64_t fixed_bytes(const Period& period) const;
  /// What a plan may use of the budget now.
  uint64_t budget_bytes() const;

 private:
  const Parts& parts_;
  ProcessorUse processors_;
};

}  // namespace tencache
