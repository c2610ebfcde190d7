// SPDX-License-Identifier: Apache-2.0
//
// Plans a period that came in through the C ABI: turns the flat arrays into a Trace, plans it for a
// machine, and writes the plan's figures or timeline as JSON. Nothing here keeps state.
//
// Threads: any.
#pragma once

#include <string>

#include "abi/tencache.h"
#include "base/status.h"

namespace tencache {

/// The JSON that tencache_plan() describes. kInvalidArgument if the period or the machine cannot be
/// planned for, kOutOfMemory if planning needs more memory than there is.
Result<std::string> plan_json(const tencache_period& period, const tencache_machine& machine);

/// The JSON that tencache_plan_timeline() describes. Fails as plan_json() does.
Result<std::string> timeline_json(const tencache_period& period, const tencache_machine& machine);

}  // namespace tencache
