// SPDX-License-Identifier: Apache-2.0
//
// The run time's streams and host functions. The driver knows which streams capture a graph. Any
// thread may call.
#include <algorithm>

#include "contexts.h"
#include "errors.h"
#include "stream_priorities.h"

using namespace emulated_gpu::runtime;

namespace {

constexpr int kPriorityGreatest = -5;  // as cudaDeviceGetStreamPriorityRange says

}  // namespace

EMULATED_PUBLIC cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                                         int priority) {
  const CUresult result = ready().cuStreamCreateWithPriority(stream, flags, priority);
  if (result == CUDA_SUCCESS)
    StreamPriorities::instance().add(*stream, std::clamp(priority, kPriorityGreatest, 0));
  return note(result);
}
EMULATED_PUBLIC cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
EMULATED_PUBLIC cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
EMULATED_PUBLIC cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  StreamPriorities::instance().remove(stream);
  return note(ready().cuStreamDestroy(stream));
}
EMULATED_PUBLIC cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  if (priority == nullptr) return note(cudaErrorInvalidValue);
  *priority = StreamPriorities::instance().find(stream);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return note(ready().cuStreamQuery(stream));
}
EMULATED_PUBLIC cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return note(ready().cuStreamSynchronize(stream));
}
EMULATED_PUBLIC cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                                unsigned flags) {
  return note(ready().cuStreamWaitEvent(stream, event, flags));
}
EMULATED_PUBLIC cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                                               void* data) {
  return note(ready().cuLaunchHostFunc(stream, function, data));
}
EMULATED_PUBLIC cudaError_t cudaStreamAddCallback(cudaStream_t stream,
                                                  cudaStreamCallback_t function, void* data,
                                                  unsigned flags) {
  // A CUresult and a cudaError_t of the same error have the same number.
  return note(ready().cuStreamAddCallback(stream, reinterpret_cast<CUstreamCallback>(function),
                                          data, flags));
}
