// SPDX-License-Identifier: Apache-2.0
//
// The run time's copies and memset. The addresses determine the kind of a copy where it is not
// given. Any thread may call.
#include "contexts.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

namespace {

CUresult copy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
              CUstream stream) {
  const Driver& d = ready();
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return d.cuMemcpyHtoDAsync(address(target), source, bytes, stream);
    case cudaMemcpyDeviceToHost:
      return d.cuMemcpyDtoHAsync(target, address(source), bytes, stream);
    case cudaMemcpyDeviceToDevice:
      return d.cuMemcpyDtoDAsync(address(target), address(source), bytes, stream);
    default:
      return d.cuMemcpyAsync(address(target), address(source), bytes, stream);
  }
}

cudaError_t check_kind(cudaMemcpyKind kind) {
  return kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault ? cudaErrorInvalidMemcpyDirection
                                                                 : cudaSuccess;
}

}  // namespace

EMULATED_PUBLIC cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes,
                                            cudaMemcpyKind kind, cudaStream_t stream) {
  const cudaError_t error = check_kind(kind);
  if (error != cudaSuccess) return note(error);
  return note(copy(target, source, bytes, kind, stream));
}
EMULATED_PUBLIC cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes,
                                       cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(target, source, bytes, kind, nullptr);
  return error != cudaSuccess ? error : note(driver().cuStreamSynchronize(nullptr));
}
EMULATED_PUBLIC cudaError_t cudaMemcpyPeerAsync(void* target, int target_device, const void* source,
                                                int source_device, size_t bytes,
                                                cudaStream_t stream) {
  const Driver& d = ready();
  if (!has_device(target_device) || !has_device(source_device)) return note(cudaErrorInvalidDevice);
  CUcontext to = context_of(target_device);
  CUcontext from = context_of(source_device);
  if (to == nullptr || from == nullptr) return note(cudaErrorDeviceUninitialized);
  return note(d.cuMemcpyPeerAsync(address(target), to, address(source), from, bytes, stream));
}
EMULATED_PUBLIC cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                                              size_t source_pitch, size_t width, size_t height,
                                              cudaMemcpyKind kind, cudaStream_t stream) {
  if (width > target_pitch || width > source_pitch) return note(cudaErrorInvalidPitchValue);
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error =
        cudaMemcpyAsync(static_cast<char*>(target) + row * target_pitch,
                        static_cast<const char*>(source) + row * source_pitch, width, kind, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes,
                                            cudaStream_t stream) {
  return note(
      ready().cuMemsetD8Async(address(target), static_cast<unsigned char>(value), bytes, stream));
}
EMULATED_PUBLIC cudaError_t cudaMemset(void* target, int value, size_t bytes) {
  return cudaMemsetAsync(target, value, bytes, nullptr);
}
