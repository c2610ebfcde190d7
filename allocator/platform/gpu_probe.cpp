// SPDX-License-Identifier: Apache-2.0
#include "platform/gpu_probe.h"

#include "platform/cuda/driver_api.h"
#include "platform/cuda/gpu.h"

namespace tencache {

GpuProbe probe_gpus() {
  const Result<DriverApi> loaded = load_driver();
  if (!loaded.is_ok()) return {{}, loaded.status().message()};
  const DriverApi& driver = loaded.value();
  int count = 0;
  const Status counted =
      cuda_status(driver, driver.cuDeviceGetCount(&count), "Cannot count the GPUs");
  if (!counted.is_ok()) return {{}, counted.message()};
  GpuProbe probe;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    const Status got = cuda_status(driver, driver.cuDeviceGet(&device, ordinal),
                                   "Cannot get GPU " + std::to_string(ordinal));
    const Result<GpuFacts> facts =
        got.is_ok() ? find_gpu_facts(driver, device) : Result<GpuFacts>(got);
    if (facts.is_ok()) {
      probe.gpus.push_back({facts.value().name, facts.value().total_bytes, ""});
    } else {
      probe.gpus.push_back({"GPU " + std::to_string(ordinal), 0, facts.status().message()});
    }
  }
  if (probe.gpus.empty()) probe.reason = "There is a CUDA driver here, but no GPU that it can use.";
  return probe;
}

}  // namespace tencache
