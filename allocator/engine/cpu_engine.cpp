// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu_engine.h"

#include <utility>

namespace tencache {

Result<std::unique_ptr<CpuEngine>> CpuEngine::create(const CpuEngineConfig& config) {
  std::unique_ptr<CpuEngine> engine(new CpuEngine(config));
  const Status started =
      engine->start([&](Budget& budget, Stats& stats) -> Result<std::unique_ptr<Device>> {
        Result<std::unique_ptr<CpuDevice>> backend = CpuDevice::open(config, budget, stats);
        if (!backend.is_ok()) return backend.status();
        engine->device_ = backend.value().get();
        return std::unique_ptr<Device>(std::move(backend).value());
      });
  if (!started.is_ok()) return started;
  return engine;
}

}  // namespace tencache
