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

// The default share of a GPU's memory. The rest is for CUDA itself, its libraries and other
// programs.
constexpr double kDefaultFraction = 0.9;

uint64_t share_of(uint64_t bytes, double fraction) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * fraction);
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

Status check_fraction(double fraction) {
  if (fraction >= 0.0 && fraction <= 1.0) return Status::ok();
  return invalid_argument("The share of the GPU's memory is " + std::to_string(fraction) +
                          "; it must be from 0 to 1.");
}

void destroy_gpu(tencache_gpu* gpu) {
  gpu->engine.reset();  // before the driver table that it calls
  delete gpu;
}

}  // namespace

Result<tencache_gpu*> open_gpu(const DriverApi& driver, const CudaDeviceConfig& device_config,
                               EngineConfig engine_config) {
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(driver, device_config);
  if (!device.is_ok()) return device.status();
  auto gpu = std::make_unique<tencache_gpu>();
  gpu->device = device.value().get();
  gpu->total_bytes = gpu->device->gpu().facts().total_bytes;
  gpu->budget_bytes_max = device_config.budget_bytes;
  TENCACHE_RETURN_IF_ERROR(
      Engine::create(std::move(engine_config), std::move(device).value()).move_to(&gpu->engine));
  return gpu.release();
}

Status set_fraction(tencache_gpu& gpu, double fraction) {
  TENCACHE_RETURN_IF_ERROR(check_fraction(fraction));
  const uint64_t bytes = std::min(gpu.budget_bytes_max, share_of(gpu.total_bytes, fraction));
  gpu.device->heap().set_limit(bytes, fraction < 1.0);
  gpu.engine->on_budget_change();
  return Status::ok();
}

Result<tencache_gpu*> open_gpu_of_runtime(const DriverApi& driver, int ordinal, double fraction,
                                          const std::optional<NvrtcApi>& nvrtc) {
  Runtime& runtime = Runtime::instance();
  Result<CudaDeviceConfig> asked = runtime.gpu_config(ordinal);
  if (!asked.is_ok()) return asked.status();
  CudaDeviceConfig& config = asked.value();
  const Result<uint64_t> total = total_bytes(driver, ordinal);
  if (!total.is_ok()) return total.status();
  TENCACHE_RETURN_IF_ERROR(check_fraction(fraction));
  config.budget_bytes = config.budget_bytes > 0 ? std::min(config.budget_bytes, total.value())
                                                : share_of(total.value(), kDefaultFraction);
  config.nvrtc = nvrtc;
  if (runtime.wants_direct_storage() && config.disk) {
    const Result<CuFileApi> cufile = load_cufile();
    if (cufile.is_ok()) {
      config.cufile = cufile.value();
    } else {
      TENCACHE_LOG_WARNING("%s", cufile.status().message().c_str());
    }
  }
  Result<tencache_gpu*> gpu = open_gpu(driver, config, runtime.gpu_engine_config(ordinal));
  if (!gpu.is_ok()) return gpu;
  const Status added =
      runtime.add_gpu({ordinal, gpu.value()->engine.get()}, gpu.value()->device->gpu().facts().name,
                      tencache_gpu_arena(gpu.value()));
  if (!added.is_ok()) {
    destroy_gpu(gpu.value());  // nobody knows this GPU, so the watch over the others goes on
    return added;
  }
  if (fraction != 1.0) (void)set_fraction(*gpu.value(), fraction);  // checked above
  return gpu;
}

namespace {

Result<tencache_gpu*> open_with_own_driver(int ordinal, double fraction) {
  const Result<DriverApi> loaded = load_driver();
  if (!loaded.is_ok()) return loaded.status();
  auto driver = std::make_unique<DriverApi>(loaded.value());
  const Result<NvrtcApi> nvrtc = load_nvrtc();
  if (!nvrtc.is_ok()) {
    TENCACHE_LOG_WARNING(
        "%s Until then every tensor that leaves a GPU is copied, even if it has not changed, and "
        "nothing proves that a copy is whole.",
        nvrtc.status().message().c_str());
  }
  Result<tencache_gpu*> gpu = open_gpu_of_runtime(
      *driver, ordinal, fraction, nvrtc.is_ok() ? std::optional(nvrtc.value()) : std::nullopt);
  if (gpu.is_ok()) gpu.value()->own_driver = std::move(driver);
  return gpu;
}

}  // namespace
}  // namespace tencache

extern "C" {

tencache_gpu* tencache_open_gpu(int ordinal, double fraction, tencache_error* error) {
  return tencache::value_or_null(tencache::open_with_own_driver(ordinal, fraction), error);
}

void tencache_gpu_close(tencache_gpu* gpu) {
  if (gpu == nullptr) return;
  tencache::Runtime::instance().watch().stop();
  tencache::Runtime::instance().engines().remove(gpu->engine.get());
  tencache::destroy_gpu(gpu);
}

}  // extern "C"
