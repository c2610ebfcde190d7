// SPDX-License-Identifier: Apache-2.0
//
// Copies between devices and by address, and the attributes of addresses.
#include <optional>

#include "driver/functions.h"
#include "driver/started_driver.h"

namespace tencache {
namespace {

// Whether the memory of one device covers the range.
bool lies_on(const SimulatedMemory& memory, int device, CUdeviceptr address, uint64_t bytes) {
  while (bytes > 0) {
    const std::optional<SimulatedMemory::Mapped> mapped = memory.mapped_at(address);
    if (!mapped.has_value() || mapped->device != device) return false;
    const uint64_t covered = mapped->address + mapped->bytes - address;
    if (covered >= bytes) return true;
    address += covered;
    bytes -= covered;
  }
  return true;
}

}  // namespace

CUresult copy_peer(SimulatedDriver& driver, CUdeviceptr target, CUcontext target_context,
                   CUdeviceptr source, CUcontext source_context, size_t bytes, CUstream stream) {
  const SimulatedDriver::Parts& parts = driver.parts();
  if (!parts.devices.is_alive(target_context) || !parts.devices.is_alive(source_context)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (!lies_on(parts.memory, parts.devices.device_of(target_context), target, bytes) ||
      !lies_on(parts.memory, parts.devices.device_of(source_context), source, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return driver.api().cuMemcpyDtoDAsync(target, source, bytes, stream);
}

CUresult copy_by_address(SimulatedDriver& driver, CUdeviceptr target, CUdeviceptr source,
                         size_t bytes, CUstream stream) {
  const SimulatedMemory& memory = driver.parts().memory;
  const bool is_to_device = memory.place_of({target, 1, false}, kAnyDevice).is_reserved;
  const bool is_from_device = memory.place_of({source, 1, false}, kAnyDevice).is_reserved;
  auto* const to = reinterpret_cast<void*>(target);
  const auto* const from = reinterpret_cast<const void*>(source);
  const DriverApi& api = driver.api();
  if (is_to_device && is_from_device) return api.cuMemcpyDtoDAsync(target, source, bytes, stream);
  if (is_to_device) return api.cuMemcpyHtoDAsync(target, from, bytes, stream);
  if (is_from_device) return api.cuMemcpyDtoHAsync(to, source, bytes, stream);
  return driver.parts().streams.copy_on_host(to, from, bytes, stream);
}

CUresult can_access_peer(SimulatedDriver& driver, int* can, CUdevice device, CUdevice peer) {
  const SimulatedDevices& devices = driver.parts().devices;
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!devices.has_device(device) || !devices.has_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = devices.has_peers() && device != peer ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(SimulatedDriver& driver, void* data, CUpointer_attribute attribute,
                           CUdeviceptr address) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const SimulatedDriver::Parts& parts = driver.parts();
  const std::optional<SimulatedMemory::Mapped> mapped = parts.memory.mapped_at(address);
  const bool is_registered = parts.host.is_registered({address, 1}, kAnyDevice);
  if (!mapped.has_value() && !is_registered) return CUDA_ERROR_INVALID_VALUE;
  const bool is_host =
      is_registered || parts.memory.place_of({address, 1, false}, kAnyDevice).is_host;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = mapped.has_value() ? mapped->device : 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(data) = 0;
      return CUDA_SUCCESS;
    default:
      return refuse("cuPointerGetAttribute of this attribute");
  }
}

CUresult address_range(SimulatedDriver& driver, CUdeviceptr* base, size_t* bytes,
                       CUdeviceptr address) {
  const auto mapped = driver.parts().memory.mapped_at(address);
  if (!mapped.has_value()) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = mapped->address;
  if (bytes != nullptr) *bytes = mapped->bytes;
  return CUDA_SUCCESS;
}

}  // namespace tencache
