// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda_engine.h"

#include <utility>

namespace tencache {

Result<std::unique_ptr<CudaEngine>> CudaEngine::create(const DriverApi& driver,
                                                       const CudaEngineConfig& config) {
  std::unique_ptr<CudaEngine> engine(new CudaEngine(config));
  TENCACHE_RETURN_IF_ERROR(engine->start([&](Budget& budget,
                                             Stats& stats) -> Result<std::unique_ptr<Device>> {
    Result<std::unique_ptr<CudaDevice>> backend = CudaDevice::open(driver, config, budget, stats);
    if (!backend.is_ok()) return backend.status();
    engine->device_ = backend.value().get();
    return std::unique_ptr<Device>(std::move(backend).value());
  }));
  if (StreamMover* mover = engine->device_->mover()) {
    TENCACHE_RETURN_IF_ERROR(mover->measure_link(config.probe_bytes));
    // What that took is no use by the program.
    engine->heap().reset_peaks();
    engine->heap().reset_totals();
    engine->stats().peak_device_bytes = engine->budget().used();
  }
  return engine;
}

void CudaEngine::set_budget(uint64_t bytes, bool is_bounded) {
  heap().set_limit(bytes, is_bounded);
  evictor().on_budget_change();
}

}  // namespace tencache
