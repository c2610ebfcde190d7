// SPDX-License-Identifier: Apache-2.0
#include "abi/cuda/open_gpu.h"

#include <algorithm>
#include <string>
#include <utility>

#include "abi/error_text.h"
#include "abi/runtime.h"
#include "base/log.h"

namespace tencache {
namespace {

constexpr double kDefaultFraction = 0.9;

Status check_config(const tencache_gpu_config& config) {
  if (!(config.device_fraction > 0.0 && config.device_fraction <= 1.0)) {
    return {StatusCode::kInvalidArgument, "The share of the GPU's memory is " +
                                              std::to_string(config.device_fraction) +
                                              "; it must be above 0 and at most 1."};
  }
  if (!(config.arm_at >= 0.0 && config.arm_at <= 1.0)) {
    return {StatusCode::kInvalidArgument, "The share of the budget at which ops are watched is " +
                                              std::to_string(config.arm_at) +
                                              "; it must be from 0 to 1."};
  }
  return Status::ok();
}

Result<uint64_t> total_bytes(const DriverApi& driver, int ordinal) {
  const std::string gpu = "GPU " + std::to_string(ordinal);
  CUdevice device = 0;
  TENCACHE_RETURN_IF_ERROR(
      cuda_status(driver, driver.cuDeviceGet(&device, ordinal), "There is no " + gpu));
  size_t bytes = 0;
  TENCACHE_RETURN_IF_ERROR(cuda_status(driver, driver.cuDeviceTotalMem(&bytes, device),
                                       "Cannot ask for the memory of " + gpu));
  return uint64_t{bytes};
}

Result<CudaEngineConfig> engine_config(const DriverApi& driver, const tencache_gpu_config& config,
                                       GpuParts parts) {
  TENCACHE_RETURN_IF_ERROR(check_config(config));
  const Result<uint64_t> total = total_bytes(driver, config.ordinal);
  if (!total.is_ok()) return total.status();
  CudaEngineConfig made;
  static_cast<EngineConfig&>(made) = std::move(parts.wiring);
  made.ordinal = config.ordinal;
  made.budget_bytes =
      static_cast<uint64_t>(static_cast<double>(total.value()) * config.device_fraction);
  if (config.device_budget_bytes > 0) {
    made.budget_bytes = std::min(made.budget_bytes, config.device_budget_bytes);
  }
  made.arm_at = config.arm_at;
  made.heap.extent_min_bytes = config.extent_min_bytes;
  made.heap.strict = config.strict != 0;
  if (config.host_budget_bytes > 0 && !made.heap.strict) {
    made.host.emplace();
    made.host->budget_bytes = config.host_budget_bytes;
    made.disk = std::move(parts.disk);
  }
  if (config.has_chaos != 0) made.chaos = ChaosConfig{config.chaos_seed, config.chaos_probability};
  made.probe_bytes = config.probe_bytes;
  if (parts.nvrtc != nullptr) made.nvrtc = *parts.nvrtc;
  if (parts.cufile != nullptr) made.cufile = *parts.cufile;
  return made;
}

}  // namespace

Result<tencache_gpu*> open_gpu(const DriverApi& driver, const tencache_gpu_config& config,
                               GpuParts parts) {
  const Result<CudaEngineConfig> made = engine_config(driver, config, std::move(parts));
  if (!made.is_ok()) return made.status();
  Result<std::unique_ptr<CudaEngine>> engine = CudaEngine::create(driver, made.value());
  if (!engine.is_ok()) return engine.status();
  auto gpu = std::make_unique<tencache_gpu>();
  gpu->total_bytes = engine.value()->backend().gpu().facts().total_bytes;
  gpu->budget_bytes_max = made.value().budget_bytes;
  gpu->engine = std::move(engine).value();
  return gpu.release();
}

Status set_fraction(tencache_gpu& gpu, double fraction) {
  if (!(fraction >= 0.0 && fraction <= 1.0)) {
    return {StatusCode::kInvalidArgument, "The share of the GPU's memory is " +
                                              std::to_string(fraction) +
                                              "; it must be from 0 to 1."};
  }
  const double bytes = static_cast<double>(gpu.total_bytes) * fraction;
  gpu.engine->set_budget(std::min(gpu.budget_bytes_max, static_cast<uint64_t>(bytes)),
                         fraction < 1.0);
  return Status::ok();
}

Result<tencache_gpu*> open_gpu_of_runtime(const DriverApi& driver, int ordinal, double fraction,
                                          const NvrtcApi* nvrtc) {
  Runtime& runtime = Runtime::instance();
  const Result<tencache_gpu_config> config = runtime.gpu_config(ordinal);
  if (!config.is_ok()) return config.status();
  const Result<std::optional<DiskTierConfig>> disk = runtime.gpu_disk();
  if (!disk.is_ok()) return disk.status();
  Result<CuFileApi> cufile = Status(StatusCode::kUnavailable, "It was not asked for.");
  if (runtime.wants_direct_storage() && disk.value()) {
    cufile = load_cufile();
    if (!cufile.is_ok()) TENCACHE_LOG_WARNING("%s", cufile.status().message().c_str());
  }
  Result<tencache_gpu*> gpu = open_gpu(driver, config.value(),
                                       {runtime.gpu_wiring(ordinal), disk.value(), nvrtc,
                                        cufile.is_ok() ? &cufile.value() : nullptr});
  if (!gpu.is_ok()) return gpu;
  CudaEngine& engine = *gpu.value()->engine;
  const Status added =
      runtime.add_gpu({ordinal, &engine, engine.host(), engine.disk()},
                      engine.backend().gpu().facts().name, tencache_gpu_arena(gpu.value()));
  const Status bounded =
      added.is_ok() && fraction != 1.0 ? set_fraction(*gpu.value(), fraction) : added;
  if (bounded.is_ok()) return gpu;
  tencache_gpu_close(gpu.value());
  return bounded;
}

namespace {

template <typename Open>
Result<tencache_gpu*> open_with_own_driver(const Open& open) {
  const Result<DriverApi> loaded = load_driver();
  if (!loaded.is_ok()) return loaded.status();
  auto driver = std::make_unique<DriverApi>(loaded.value());
  const Result<NvrtcApi> nvrtc = load_nvrtc();
  if (!nvrtc.is_ok()) {
    TENCACHE_LOG_WARNING(
        "%s Until then whatever leaves a GPU is copied, also what has not changed, and nothing "
        "proves that a copy is whole.",
        nvrtc.status().message().c_str());
  }
  Result<tencache_gpu*> gpu = open(*driver, nvrtc.is_ok() ? &nvrtc.value() : nullptr);
  if (gpu.is_ok()) gpu.value()->own_driver = std::move(driver);
  return gpu;
}

// Null with *error filled where there is none.
tencache_gpu* given(const Result<tencache_gpu*>& gpu, tencache_error* error) {
  if (gpu.is_ok()) return gpu.value();
  report(gpu.status(), error);
  return nullptr;
}

}  // namespace
}  // namespace tencache

using tencache::DriverApi;
using tencache::NvrtcApi;
using tencache::Runtime;

extern "C" {

void tencache_gpu_default_config(int ordinal, tencache_gpu_config* config) {
  const tencache::CudaEngineConfig defaults;
  *config = {};
  config->ordinal = ordinal;
  config->device_fraction = tencache::kDefaultFraction;
  config->extent_min_bytes = defaults.heap.extent_min_bytes;
  config->arm_at = defaults.arm_at;
  config->chaos_probability = 1.0;
  config->probe_bytes = defaults.probe_bytes;
}

tencache_gpu* tencache_gpu_open(const tencache_gpu_config* config, tencache_error* error) {
  return tencache::given(
      tencache::open_with_own_driver([&](const DriverApi& driver, const NvrtcApi* nvrtc) {
        return tencache::open_gpu(driver, *config, {{}, std::nullopt, nvrtc, nullptr});
      }),
      error);
}

tencache_gpu* tencache_open_gpu(int ordinal, double fraction, tencache_error* error) {
  return tencache::given(
      tencache::open_with_own_driver([&](const DriverApi& driver, const NvrtcApi* nvrtc) {
        return tencache::open_gpu_of_runtime(driver, ordinal, fraction, nvrtc);
      }),
      error);
}

void tencache_gpu_close(tencache_gpu* gpu) {
  if (gpu == nullptr) return;
  Runtime::instance().gpus().remove(gpu->engine.get());
  gpu->engine.reset();  // before the table it calls
  delete gpu;
}

}  // extern "C"
