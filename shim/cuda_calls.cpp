// SPDX-License-Identifier: Apache-2.0
#include "cuda_calls.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

namespace tencache::shim {
namespace {

cudaStream_t current_stream(c10::DeviceIndex device) {
  return c10::cuda::getCurrentCUDAStream(device).stream();
}

c10::Stream current_torch_stream(c10::DeviceIndex device) {
  return c10::cuda::getCurrentCUDAStream(device).unwrap();
}

// From torch 2.15 on, stream() may initialise CUDA.
cudaStream_t handle_of(const c10::cuda::CUDAStream& stream) { return stream.stream(); }

void synchronize(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard guard(device);
  c10::cuda::device_synchronize();
}

void copy(void* target, const void* source, size_t bytes) {
  C10_CUDA_CHECK(cudaMemcpy(target, source, bytes, cudaMemcpyDeviceToDevice));
}

cudaError_t copy_async(void* target, const void* source, size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream);
}

void enable_peer(c10::DeviceIndex device, c10::DeviceIndex accessed) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t error = cudaDeviceEnablePeerAccess(accessed, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
  } else {
    C10_CUDA_CHECK(error);
  }
}

int device_count() { return c10::cuda::device_count(); }

// torch.cuda.memory shows the allocator that is set here. The allocator is never destroyed.
void publish(c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator) {
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator({&allocator, [](auto*) {}});
}

}  // namespace

const CudaCalls& torch_cuda_calls() {
  static constexpr CudaCalls kCalls = {&device_count,   &c10::cuda::current_device,
                                       &current_stream, &handle_of,
                                       &synchronize,    &copy,
                                       &copy_async,     &cudaMemcpyPeerAsync,
                                       &enable_peer,    &current_torch_stream,
                                       &publish};
  return kCalls;
}

}  // namespace tencache::shim
