// SPDX-License-Identifier: Apache-2.0
//
// ProcessorUse: how busy this process keeps the processors it may run on. Where they are busy,
// moves take processor time from the program; where they are idle, moves cost it nothing.
//
// Threads: the learner's only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "platform/machine.h"

namespace tencache {

class ProcessorUse {
 public:
  /// The share of the processors' time, from 0 to 1, that the process used since the last call, or
  /// since construction at the first call.
  double used_share() {
    const uint64_t now = now_ns();
    const uint64_t work = process_work_ns();
    const double passed_ns = static_cast<double>(now - last_ns_) * usable_processors();
    const double share = static_cast<double>(work - last_work_ns_) / std::max(passed_ns, 1.0);
    last_ns_ = now;
    last_work_ns_ = work;
    return std::min(share, 1.0);
  }

 private:
  uint64_t last_ns_ = now_ns();
  uint64_t last_work_ns_ = process_work_ns();
};

}  // namespace tencache
