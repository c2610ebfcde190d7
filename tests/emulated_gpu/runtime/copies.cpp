// SPDX-License-Identifier: Apache-2.0
//
// The run time's copies and memset. The addresses determine the kind of a copy where it is not
// given. In a capturing stream copies become nodes of the graph. Copies within the host are done at
// once, as CUDA documents; in a graph a host function does them. Any thread may call.
#include <cstring>
#include <utility>

#include "capture.h"
#include "contexts.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

namespace {

struct Copy {
  void* target;
  const void* source;
  size_t bytes;
};

cudaMemcpyKind kind_of(const Copy& copy) {
  const bool to = driver().is_device(copy.target), from = driver().is_device(copy.source);
  return to ? (from ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
            : (from ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
}

CUresult copy_by_host_function(const Copy& copy, CUstream stream) {
  auto* job = new Copy(copy);
  const CUresult result = driver().cuLaunchHostFunc(
      stream,
      [](void* data) {
        auto* todo = static_cast<Copy*>(data);
        memmove(todo->target, todo->source, todo->bytes);
        delete todo;
      },
      job);
  if (result != CUDA_SUCCESS) delete job;
  return result;
}

CUresult copy_within_host(const Copy& copy, CUstream stream) {
  Captures& captures = Captures::instance();
  if (captures.is_capturing(stream))
    return captures.queue(stream, [copy](CUstream in) { return copy_by_host_function(copy, in); });
  const cudaError_t error = captures.check_use(stream);
  if (error != cudaSuccess) return static_cast<CUresult>(error);
  const CUresult result = driver().cuStreamSynchronize(stream);
  if (result == CUDA_SUCCESS) memmove(copy.target, copy.source, copy.bytes);
  return result;
}

CUresult copy_in_stream(const Copy& copy, cudaMemcpyKind kind, CUstream stream) {
  const Driver& d = ready();
  if (copy.bytes == 0) return static_cast<CUresult>(Captures::instance().check_use(stream));
  if (kind == cudaMemcpyDefault) kind = kind_of(copy);
  if (kind == cudaMemcpyHostToHost) return copy_within_host(copy, stream);
  return Captures::instance().queue(stream, [&d, copy, kind](CUstream in) {
    const auto [target, source, bytes] = copy;
    switch (kind) {
      case cudaMemcpyHostToDevice:
        return d.cuMemcpyHtoDAsync(address(target), source, bytes, in);
      case cudaMemcpyDeviceToHost:
        return d.cuMemcpyDtoHAsync(target, address(source), bytes, in);
      default:
        return d.cuMemcpyDtoDAsync(address(target), address(source), bytes, in);
    }
  });
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
  return note(copy_in_stream({target, source, bytes}, kind, stream));
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
  if (bytes == 0) return note(Captures::instance().check_use(stream));
  CUcontext to = context_of(target_device);
  CUcontext from = context_of(source_device);
  if (to == nullptr || from == nullptr) return note(cudaErrorDeviceUninitialized);
  return note(Captures::instance().queue(stream, [=, &d](CUstream in) {
    return d.cuMemcpyPeerAsync(address(target), to, address(source), from, bytes, in);
  }));
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
  const Driver& d = ready();
  return note(Captures::instance().queue(stream, [=, &d](CUstream in) {
    return d.cuMemsetD8Async(address(target), static_cast<unsigned char>(value), bytes, in);
  }));
}
EMULATED_PUBLIC cudaError_t cudaMemset(void* target, int value, size_t bytes) {
  return cudaMemsetAsync(target, value, bytes, nullptr);
}
