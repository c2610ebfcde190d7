// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/copy_kernel.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "platform/cuda/device_copy_kernel_text.h"

namespace tencache {
namespace {

// The kernel takes one in this many multiprocessors. With 132 of them, 16 blocks have 256 KiB in
// flight; a link of 64 GB/s with a latency of 2 us holds 128 KiB. On an H200
// (benchmarks/gpu/experiments, E5) 8 blocks reach 52 GB/s from the GPU, and 32 no more; to the GPU
// 8 reach 38 GB/s and 32 reach 51.
constexpr unsigned kShareOfGpu = 8;

}  // namespace

CopyKernel::CopyKernel(std::unique_ptr<LoadedKernel> kernel)
    : kernel_(std::move(kernel)), blocks_(std::max(kernel_->multiprocessors() / kShareOfGpu, 1u)) {}

Result<std::unique_ptr<CopyKernel>> CopyKernel::create(const Gpu& gpu, const NvrtcApi& nvrtc) {
  int has_same_addresses = 0;
  const CUresult asked = gpu.driver().cuDeviceGetAttribute(
      &has_same_addresses, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
      gpu.device());
  TENCACHE_RETURN_IF_ERROR(cuda_status(gpu.driver(), asked, "Cannot query the GPU"));
  if (has_same_addresses == 0) {
    return Status(StatusCode::kUnavailable,
                  "The GPU sees pinned host memory at other addresses than the host.");
  }
  Result<std::unique_ptr<LoadedKernel>> kernel =
      LoadedKernel::create(gpu, nvrtc, kDeviceCopyKernelName, device_copy_kernel_text(), "copies");
  if (!kernel.is_ok()) return kernel.status();
  return std::unique_ptr<CopyKernel>(new CopyKernel(std::move(kernel).value()));
}

Status CopyKernel::to_host(CUstream stream, void* host, CUdeviceptr device, uint64_t bytes) const {
  return copy(stream, reinterpret_cast<const void*>(device), host, bytes);
}

Status CopyKernel::to_device(CUstream stream, CUdeviceptr device, const void* host,
                             uint64_t bytes) const {
  return copy(stream, host, reinterpret_cast<void*>(device), bytes);
}

Status CopyKernel::copy(CUstream stream, const void* from, void* to, uint64_t bytes) const {
  TENCACHE_CHECK((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) | bytes) %
                         sizeof(CopyWord) ==
                     0,
                 "%p, %p or %s is no multiple of 16", from, to, format_bytes(bytes).c_str());
  const CopyJob job = {static_cast<const CopyWord*>(from), static_cast<CopyWord*>(to),
                       bytes / sizeof(CopyWord)};
  return kernel_->launch(stream, blocks_, kCopyLanes, &job);
}

const char* device_copy_kernel_text() { return kDeviceCopyKernelText; }

}  // namespace tencache
