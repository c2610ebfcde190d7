// SPDX-License-Identifier: Apache-2.0
//
// Functions that open a GPU and the engine over it. Suites that link the core itself can bring
// their own driver table (the simulated driver). libtencache.so does not export this.
#pragma once

#include <memory>
#include <optional>

#include "abi/tencache_gpu.h"
#include "base/status.h"
#include "engine/cuda_device.h"
#include "engine/engine.h"
#include "platform/cuda/driver_api.h"
#include "platform/cuda/nvrtc_api.h"

struct tencache_gpu {
  std::unique_ptr<tencache::DriverApi> own_driver;   // null if the caller brought one
  uint64_t total_bytes = 0;                          // of the GPU
  uint64_t budget_bytes_max = 0;                     // set_fraction() sets no more
  std::unique_ptr<tencache::HeapObserver> observer;  // of the engine's heap, or null
  std::unique_ptr<tencache::Engine> engine;
  tencache::CudaDevice* device = nullptr;  // the engine's
};

namespace tencache {

/// Opens a GPU with these configurations; suites bring their own. The driver table must outlive the
/// engine.
Result<tencache_gpu*> open_gpu(const DriverApi& driver, const CudaDeviceConfig& device_config,
                               EngineConfig engine_config = {});

/// Does what tencache_gpu_set_fraction() does.
Status set_fraction(tencache_gpu& gpu, double fraction);

/// Does what tencache_open_gpu() does, with the caller's driver table. Without NVRTC there are no
/// hashes, and every eviction copies.
Result<tencache_gpu*> open_gpu_of_runtime(const DriverApi& driver, int ordinal, double fraction,
                                          const std::optional<NvrtcApi>& nvrtc = std::nullopt);

}  // namespace tencache
