// SPDX-License-Identifier: Apache-2.0
//
// CopyKernel: copies between device memory and pinned host memory by the GPU's multiprocessors, in
// a stream. It serves where the GPU's copy engines are slower, which a measurement decides. A few
// multiprocessors saturate the link; meanwhile the program's kernels lack them. Threads: any.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "platform/cuda/device_copy_kernel.h"
#include "platform/cuda/gpu.h"
#include "platform/cuda/loaded_kernel.h"

namespace tencache {

class CopyKernel {
 public:
  /// Compiles the kernel for the GPU. Returns kUnavailable where a GPU sees host memory at other
  /// addresses than the host; else errors are those of NVRTC and of the driver.
  static Result<std::unique_ptr<CopyKernel>> create(const Gpu& gpu, const NvrtcApi& nvrtc);

  /// Queues a copy and returns at once. REQUIRES: both addresses and the size are multiples of 16;
  /// the host memory is pinned; both ranges stay as they are until the device reaches a mark that
  /// is made afterwards.
  Status to_host(CUstream stream, void* host, CUdeviceptr device, uint64_t bytes) const;
  Status to_device(CUstream stream, CUdeviceptr device, const void* host, uint64_t bytes) const;

 private:
  explicit CopyKernel(std::unique_ptr<LoadedKernel> kernel);
  Status copy(CUstream stream, const void* from, void* to, uint64_t bytes) const;

  const std::unique_ptr<LoadedKernel> kernel_;
  const unsigned blocks_;
};

/// The kernel's source, which is the text of device_copy_kernel.h, and the kernel's name in it, for
/// NVRTC.
const char* device_copy_kernel_text();
inline constexpr char kDeviceCopyKernelName[] = "tencache_device_copy";

}  // namespace tencache
