// SPDX-License-Identifier: Apache-2.0
//
// CudaCalls: what the allocators for CUDA ask of its run time, as a table of functions, so that its
// suite runs where there is none. Constant; any thread.
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
  /// Waits for everything that the device was given. REQUIRES: nobody captures a graph.
  void (*synchronize)(c10::DeviceIndex device) = nullptr;
  /// From device memory to device memory, as the next two; waits for it, and throws where it fails.
  void (*copy)(void* target, const void* source, size_t bytes) = nullptr;
  cudaError_t (*copy_async)(void* target, const void* source, size_t bytes,
                            cudaStream_t stream) = nullptr;
  cudaError_t (*copy_peer_async)(void* target, int target_device, const void* source,
                                 int source_device, size_t bytes, cudaStream_t stream) = nullptr;
  /// As current_stream(), in PyTorch's words.
  c10::Stream (*current_torch_stream)(c10::DeviceIndex device) = nullptr;
  /// Makes it the allocator that Python sees; may be null.
  void (*publish)(c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator) = nullptr;
};

/// Those of the CUDA that PyTorch runs on.
const CudaCalls& torch_cuda_calls();

}  // namespace tencache::shim
