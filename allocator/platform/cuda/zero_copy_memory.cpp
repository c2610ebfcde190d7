// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/zero_copy_memory.h"

#include "base/units.h"
#include "platform/cuda/call_scope.h"

namespace tencache {

Result<std::unique_ptr<ZeroCopyMemory>> ZeroCopyMemory::create(const Gpu& gpu, uint64_t bytes) {
  const DriverApi& driver = gpu.driver();
  const CallScope scope(driver, gpu.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  Result<HostMemory> mapped = HostMemory::map({.bytes = bytes, .node = gpu.facts().numa_node});
  if (!mapped.is_ok()) return mapped.status();
  HostMemory memory = std::move(mapped).value();
  TENCACHE_RETURN_IF_ERROR(cuda_status(
      driver, driver.cuMemHostRegister(memory.data(), bytes, CU_MEMHOSTREGISTER_DEVICEMAP),
      "Cannot pin " + format_bytes(bytes) + " of host memory for the GPU's use"));
  CUdeviceptr address = 0;
  const Status found =
      cuda_status(driver, driver.cuMemHostGetDevicePointer(&address, memory.data(), 0),
                  "The GPU cannot reach host memory");
  if (!found.is_ok()) {
    (void)driver.cuMemHostUnregister(memory.data());
    return found;
  }
  return std::unique_ptr<ZeroCopyMemory>(new ZeroCopyMemory(gpu, std::move(memory), address));
}

ZeroCopyMemory::~ZeroCopyMemory() {
  const CallScope scope(gpu_.driver(), gpu_.context());
  if (scope.status().is_ok()) (void)gpu_.driver().cuMemHostUnregister(memory_.data());
}

}  // namespace tencache
