// SPDX-License-Identifier: Apache-2.0
//
// ZeroCopyMemory: pinned host memory that one GPU reads and writes where it is, close to that GPU.
// It owns the memory, its registration and its address for the device.
//
// Threads: any. The memory's users order their accesses to it themselves.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "platform/cuda/gpu.h"
#include "platform/host_memory.h"

namespace tencache {

class ZeroCopyMemory {
 public:
  /// `bytes` is a multiple of the page size. Errors are those of HostMemory::map and of the driver.
  static Result<std::unique_ptr<ZeroCopyMemory>> create(const Gpu& gpu, uint64_t bytes);
  /// REQUIRES: the device no longer uses the memory, unless the driver may no longer be called.
  ~ZeroCopyMemory();
  ZeroCopyMemory(const ZeroCopyMemory&) = delete;
  ZeroCopyMemory& operator=(const ZeroCopyMemory&) = delete;

  char* host_address() const { return memory_.data(); }
  CUdeviceptr device_address() const { return device_address_; }

 private:
  ZeroCopyMemory(const Gpu& gpu, HostMemory memory, CUdeviceptr device_address)
      : gpu_(gpu), memory_(std::move(memory)), device_address_(device_address) {}

  const Gpu& gpu_;
  const HostMemory memory_;
  const CUdeviceptr device_address_;
};

}  // namespace tencache
