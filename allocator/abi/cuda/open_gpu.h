// SPDX-License-Identifier: Apache-2.0
//
// How the engine of a GPU is opened, also by what links the core itself and brings its own driver
// table (suites over the simulated driver). libtencache.so does not export it.
#pragma once

#include <memory>
#include <optional>

#include "abi/tencache_gpu.h"
#include "base/status.h"
#include "engine/cuda_engine.h"
#include "platform/cuda/driver_api.h"
#include "platform/cuda/nvrtc_api.h"

struct tencache_gpu {
  std::unique_ptr<tencache::DriverApi> own_driver;   // null where the caller brought one
  uint64_t total_bytes = 0;                          // of the GPU
  uint64_t budget_bytes_max = 0;                     // where the program sets itself no bound
  std::unique_ptr<tencache::HeapObserver> observer;  // of the engine's heap, or null
  std::unique_ptr<tencache::CudaEngine> engine;
};

namespace tencache {

/// An engine for suites that bring its configuration too. The driver's table outlives it.
Result<tencache_gpu*> open_gpu(const DriverApi& driver, const CudaEngineConfig& config);

/// As tencache_gpu_set_fraction().
Status set_fraction(tencache_gpu& gpu, double fraction);

/// As tencache_open_gpu(). Without NVRTC there are no hashes, and every eviction copies.
Result<tencache_gpu*> open_gpu_of_runtime(const DriverApi& driver, int ordinal, double fraction,
                                          const std::optional<NvrtcApi>& nvrtc = std::nullopt);

}  // namespace tencache
