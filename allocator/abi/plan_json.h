// SPDX-License-Identifier: Apache-2.0
//
// What the planner predicts for a period that came in through the C ABI: flat arrays to a Trace,
// the Trace to a plan on a machine, the plan's figures or its course to JSON. No state; any thread.
#pragma once

#include <string>

#include "abi/tencache.h"
#include "base/status.h"

namespace tencache {

/// The JSON that tencache_plan() describes. kInvalidArgument for a period or a machine that cannot
/// be planned for, kOutOfMemory when planning needs more memory than there is.
Result<std::string> plan_json(const tencache_period& period, const tencache_machine& machine);

/// The JSON that tencache_plan_timeline() describes; errors as of plan_json().
Result<std::string> timeline_json(const tencache_period& period, const tencache_machine& machine);

}  // namespace tencache
