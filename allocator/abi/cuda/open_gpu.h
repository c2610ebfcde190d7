// SPDX-License-Identifier: Apache-2.0
//
// The door to a GPU's engine for what links the core itself, which brings its own driver table
// (suites over the simulated driver). libtencache.so does not export it.
#pragma once

#include "abi/tencache_gpu.h"
#include "backend/cuda/driver_api.h"
#include "base/status.h"

namespace tencache {

/// As tencache_gpu_open(). The table outlives the engine.
Result<tencache_gpu*> open_gpu(const DriverApi& driver, const tencache_gpu_config& config);

}  // namespace tencache
