// SPDX-License-Identifier: Apache-2.0
//
// CudaCalls: a table of the CUDA runtime functions that the CUDA allocators call, so that their
// suites run on a machine without CUDA. It is constant. Threads: any.
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstddef>

namespace tencache::shim {

struct CudaCalls {
  int (*device_count)() = nullptr;
  c10::DeviceIndex (*current_device)() = nullptr;
  cudaStream_t (*current_stream)(c10::DeviceIndex device) = nullptr;
  cudaStream_t (*handle_of)(const c10::cuda::CUDAStream& stream) = nullptr;
  /// Waits for all work queued on the device. REQUIRES: nobody captures a graph.
  void (*synchronize)(c10::DeviceIndex device) = nullptr;
  /// Copies from device memory to device memory, as do the next two. Waits for the end; throws on
  /// failure.
  void (*copy)(void* target, const void* source, size_t bytes) = nullptr;
  cudaError_t (*copy_async)(void* target, const void* source, size_t bytes,
                            cudaStream_t stream) = nullptr;
  cudaError_t (*copy_peer_async)(void* target, int target_device, const void* source,
                                 int source_device, size_t bytes, cudaStream_t stream) = nullptr;
  /// Lets the device use what other allocators have on the accessed one; throws on failure.
  void (*enable_peer)(c10::DeviceIndex device, c10::DeviceIndex accessed) = nullptr;
  /// Returns what current_stream() does, as PyTorch's type.
  c10::Stream (*current_torch_stream)(c10::DeviceIndex device) = nullptr;
  /// Makes this the allocator that Python sees. `publish` itself may be null.
  void (*publish)(c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator) = nullptr;
};

/// The calls into the CUDA runtime that PyTorch uses.
const CudaCalls& torch_cuda_calls();

}  // namespace tencache::shim
