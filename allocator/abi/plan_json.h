// SPDX-License-Identifier: Apache-2.0
//
// Plans for a period that came in through the C ABI. These functions turn its flat arrays into a
// Trace, plan it for a machine, and write the plan's figures or timeline as JSON. Nothing here
// keeps state.
//
// Threads: any.
#pragma once

#include <string>

#include "abi/tencache.h"
#include "base/status.h"

namespace tencache {

/// The JSON that tencache_plan() describes. Fails with kInvalidArgument if the period or the
/// machine cannot be planned for, and with kOutOfMemory if planning needs more memory than there
/// is.
Result<std::string> plan_json(const tencache_period& period, const tencache_machine& machine);

/// The JSON that tencache_plan_timeline() describes. Fails as plan_json() does.
Result<std::string> timeline_json(const tencache_period& period, const tencache_machine& machine);

}  // namespace tencache
