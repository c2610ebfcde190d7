// SPDX-License-Identifier: Apache-2.0
//
// The door to pinned memory for what links the core itself, which brings its own driver table
// (suites over the simulated driver). libtencache.so does not export it.
#pragma once

#include "abi/tencache_pinned.h"
#include "base/status.h"
#include "platform/cuda/driver_api.h"

namespace tencache {

/// As tencache_pinned_open(). The table outlives it.
Result<tencache_pinned*> open_pinned(const DriverApi& driver, const tencache_pinned_config& config);

}  // namespace tencache
