// SPDX-License-Identifier: Apache-2.0
//
// How the engine of a GPU is opened, also by what links the core itself and brings its own driver
// table (suites over the simulated driver). libtencache.so does not export it.
#pragma once

#include <memory>
#include <optional>

#include "abi/tencache_gpu.h"
#include "backend/cuda/driver_api.h"
#include "backend/cuda/nvrtc_api.h"
#include "base/status.h"
#include "engine/cuda/cuda_engine.h"

struct tencache_gpu {
  std::unique_ptr<tencache::DriverApi> own_driver;   // null where the caller brought one
  uint64_t total_bytes = 0;                          // of the GPU
  uint64_t budget_bytes_max = 0;                     // where the program sets itself no bound
  std::unique_ptr<tencache::HeapObserver> observer;  // of the engine's heap, or null
  std::unique_ptr<tencache::CudaEngine> engine;
};

namespace tencache {

/// What an engine is made of beside its configuration.
struct GpuParts {
  EngineConfig wiring;                 // what the configuration says too, that says
  std::optional<DiskTierConfig> disk;  // below host memory
  const NvrtcApi* nvrtc = nullptr;     // null: there are no hashes, and every eviction copies
  const CuFileApi* cufile = nullptr;   // null: the disk is read by host memory
};

/// As tencache_gpu_open(). The driver's table outlives the engine.
Result<tencache_gpu*> open_gpu(const DriverApi& driver, const tencache_gpu_config& config,
                               GpuParts parts = {});

/// As tencache_gpu_set_fraction().
Status set_fraction(tencache_gpu& gpu, double fraction);

/// As tencache_open_gpu(), and as open_gpu().
Result<tencache_gpu*> open_gpu_of_runtime(const DriverApi& driver, int ordinal, double fraction,
                                          const NvrtcApi* nvrtc = nullptr);

}  // namespace tencache
