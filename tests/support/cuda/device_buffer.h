// SPDX-License-Identifier: Apache-2.0
//
// Resources of a driver that go back with their object: CurrentContext (a primary context, current
// on this thread), DeviceBuffer (mapped memory that its device may read and write) and PinnedBuffer
// (registered host memory). Each aborts when it cannot get the resource. After the context has
// failed the driver takes no memory back, which the objects tolerate. Make and destroy a
// CurrentContext on one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/check.h"
#include "platform/cuda/driver_api.h"

namespace tencache {

class CurrentContext {
 public:
  explicit CurrentContext(const DriverApi& api, CUdevice device = 0) : api_(api), device_(device) {
    CUcontext context = nullptr;
    TENCACHE_CHECK(api_.cuDevicePrimaryCtxRetain(&context, device_) == CUDA_SUCCESS);
    TENCACHE_CHECK(api_.cuCtxSetCurrent(context) == CUDA_SUCCESS);
  }
  ~CurrentContext() {
    api_.cuCtxSetCurrent(nullptr);
    api_.cuDevicePrimaryCtxRelease(device_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const DriverApi api_;
  const CUdevice device_;
};

class DeviceBuffer {
 public:
  DeviceBuffer(const DriverApi& api, uint64_t bytes,
               CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, 0})
      : api_(api),
        bytes_(bytes),
        device_(location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : 0) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location;
    CUmemGenericAllocationHandle handle = 0;
    TENCACHE_CHECK(api_.cuMemAddressReserve(&address_, bytes, 0, 0, 0) == CUDA_SUCCESS);
    TENCACHE_CHECK(api_.cuMemCreate(&handle, bytes, &properties, 0) == CUDA_SUCCESS);
    TENCACHE_CHECK(api_.cuMemMap(address_, bytes, 0, handle, 0) == CUDA_SUCCESS);
    TENCACHE_CHECK(api_.cuMemRelease(handle) == CUDA_SUCCESS);
    TENCACHE_CHECK(set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == CUDA_SUCCESS);
  }
  ~DeviceBuffer() {
    if (is_mapped_) unmap();
    api_.cuMemAddressFree(address_, bytes_);
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  CUresult set_access(CUmemAccess_flags flags) {
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device_}, flags};
    return api_.cuMemSetAccess(address_, bytes_, &access, 1);
  }
  /// Gives the memory back but holds on to the address.
  CUresult unmap() {
    is_mapped_ = false;
    return api_.cuMemUnmap(address_, bytes_);
  }

  CUdeviceptr address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  /// The address for kernels.
  char* data() const { return reinterpret_cast<char*>(address_); }

 private:
  const DriverApi api_;
  const uint64_t bytes_;
  const int device_;  // the first one for host memory
  CUdeviceptr address_ = 0;
  bool is_mapped_ = true;
};

class PinnedBuffer {
 public:
  PinnedBuffer(const DriverApi& api, uint64_t bytes)
      : api_(api), bytes_(bytes), data_(std::make_unique<char[]>(bytes)) {
    TENCACHE_CHECK(api_.cuMemHostRegister(data_.get(), bytes, 0) == CUDA_SUCCESS);
  }
  ~PinnedBuffer() { api_.cuMemHostUnregister(data_.get()); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  char* data() const { return data_.get(); }
  uint64_t bytes() const { return bytes_; }

 private:
  const DriverApi api_;
  const uint64_t bytes_;
  std::unique_ptr<char[]> data_;
};

}  // namespace tencache
