// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/gpu.h"

#include <array>

#include "platform/cuda/driver_use.h"

namespace tencache {
namespace {

// An older driver does not know every attribute: an unknown one counts as absent.
int attribute_or(const DriverApi& driver, CUdevice device, CUdevice_attribute attribute,
                 int otherwise) {
  int value = 0;
  const CUresult result = driver.cuDeviceGetAttribute(&value, attribute, device);
  return result == CUDA_SUCCESS ? value : otherwise;
}

Status expect_virtual_memory(const DriverApi& driver, CUdevice device, const std::string& name) {
  int can_map = 0;
  TENCACHE_RETURN_IF_ERROR(
      cuda_status(driver,
                  driver.cuDeviceGetAttribute(
                      &can_map, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device),
                  "Cannot query the GPU"));
  if (can_map != 0) return Status::ok();
  return {StatusCode::kUnavailable,
          name +
              " cannot map memory under addresses (virtual memory management), which tencache "
              "requires. Use a GPU of the Pascal generation or newer, not a vGPU without it."};
}

}  // namespace

Result<GpuFacts> find_gpu_facts(const DriverApi& driver, CUdevice device) {
  GpuFacts facts;
  std::array<char, 256> name{};
  TENCACHE_RETURN_IF_ERROR(cuda_status(
      driver, driver.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device),
      "Cannot ask the GPU for its name"));
  facts.name = name.data();
  size_t total_bytes = 0;
  TENCACHE_RETURN_IF_ERROR(cuda_status(driver, driver.cuDeviceTotalMem(&total_bytes, device),
                                       "Cannot ask the GPU for its memory"));
  facts.total_bytes = total_bytes;
  TENCACHE_RETURN_IF_ERROR(expect_virtual_memory(driver, device, facts.name));
  facts.numa_node = attribute_or(driver, device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1);
  facts.can_do_rdma =
      attribute_or(driver, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                   0) != 0;
  const CUmemAllocationProp properties = frame_properties(device, facts);
  size_t granularity_bytes = 0;
  TENCACHE_RETURN_IF_ERROR(
      cuda_status(driver,
                  driver.cuMemGetAllocationGranularity(&granularity_bytes, &properties,
                                                       CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                  "Cannot ask the GPU for the granularity of its memory"));
  facts.granularity_bytes = granularity_bytes;
  return facts;
}

CUmemAllocationProp frame_properties(CUdevice device, const GpuFacts& facts) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  // NCCL and copies by other devices need this flag; it costs nothing where nobody uses it.
  properties.allocFlags.gpuDirectRDMACapable = facts.can_do_rdma ? 1 : 0;
  return properties;
}

Result<std::unique_ptr<Gpu>> Gpu::open(const DriverApi& driver, int ordinal) {
  TENCACHE_RETURN_IF_ERROR(driver_use_status());
  int count = 0;
  TENCACHE_RETURN_IF_ERROR(
      cuda_status(driver, driver.cuDeviceGetCount(&count), "Cannot count the GPUs"));
  if (ordinal < 0 || ordinal >= count) {
    return Status(StatusCode::kInvalidArgument,
                  "There is no GPU " + std::to_string(ordinal) + ": this process sees " +
                      std::to_string(count) +
                      ". Choose one below that, or look at CUDA_VISIBLE_DEVICES.");
  }
  CUdevice device = 0;
  TENCACHE_RETURN_IF_ERROR(cuda_status(driver, driver.cuDeviceGet(&device, ordinal),
                                       "Cannot get GPU " + std::to_string(ordinal)));
  Result<GpuFacts> facts = find_gpu_facts(driver, device);
  if (!facts.is_ok()) return facts.status();
  CUcontext context = nullptr;
  TENCACHE_RETURN_IF_ERROR(
      cuda_status(driver, driver.cuDevicePrimaryCtxRetain(&context, device),
                  "Cannot make the CUDA context of GPU " + std::to_string(ordinal)));
  return std::unique_ptr<Gpu>(new Gpu(driver, device, std::move(facts).value(), context));
}

Status Gpu::status() const {
  // A context that has failed refuses every call. A single refusal may be
  // momentary, so ask twice.
  return ask().is_ok() ? Status::ok() : ask();
}

Status Gpu::ask() const {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  return call("The GPU's context has failed", [&](const DriverApi& driver) {
    return driver.cuMemGetInfo(&free_bytes, &total_bytes);
  });
}

Gpu::~Gpu() {
  if (may_call_driver()) (void)driver_.cuDevicePrimaryCtxRelease(device_);
}

}  // namespace tencache
