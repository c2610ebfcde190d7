// SPDX-License-Identifier: Apache-2.0
//
// Opens pinned memory for suites that link the core itself and bring their own driver table (the
// simulated driver). libtencache.so does not export this.
#pragma once

#include "abi/tencache_pinned.h"
#include "base/status.h"
#include "memory/cuda/pinned_memory.h"
#include "platform/cuda/driver_api.h"

namespace tencache {

/// As tencache_pinned_open(), with a budget. The table must outlive the memory.
Result<tencache_pinned*> open_pinned(const DriverApi& driver, PinnedMemoryConfig config);

}  // namespace tencache
