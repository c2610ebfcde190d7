// SPDX-License-Identifier: Apache-2.0
//
// Streams, events and host functions. Work in a stream that captures goes to its graph instead.
#include <mutex>
#include <unordered_map>

#include "capture.h"
#include "driver_table.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

namespace {
std::mutex mutex;
std::unordered_map<CUstream, int> priorities;
}  // namespace

EMULATED_PUBLIC cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                                         int priority) {
  const CUresult result = ready().cuStreamCreateWithPriority(stream, flags, priority);
  const std::lock_guard lock(mutex);
  if (result == CUDA_SUCCESS) priorities[*stream] = priority;
  return note(result);
}
EMULATED_PUBLIC cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
EMULATED_PUBLIC cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
EMULATED_PUBLIC cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return note(ready().cuStreamDestroy(stream));
}
EMULATED_PUBLIC cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  const std::lock_guard lock(mutex);
  const auto found = priorities.find(stream);
  *priority = found != priorities.end() ? found->second : 0;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (capture_of(stream)) return note(cudaErrorStreamCaptureUnsupported);
  return note(ready().cuStreamQuery(stream));
}
EMULATED_PUBLIC cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (capture_of(stream)) return note(cudaErrorStreamCaptureUnsupported);
  return note(ready().cuStreamSynchronize(stream));
}
EMULATED_PUBLIC cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto capture = capture_with(event)) {
    const std::lock_guard lock(capture_mutex);
    if (!captures.contains(stream)) {
      captures[stream] = capture;
      driver().set_capturing(stream, 1);
    }
    return cudaSuccess;
  }
  if (capture_of(stream)) return note(cudaErrorStreamCaptureIsolation);
  return note(ready().cuStreamWaitEvent(stream, event, 0));
}
EMULATED_PUBLIC cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                                  cudaStreamCaptureStatus* status) {
  return note(
      ready().cuStreamIsCapturing(stream, reinterpret_cast<CUstreamCaptureStatus*>(status)));
}
EMULATED_PUBLIC cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                                     cudaStreamCaptureStatus* status,
                                                     unsigned long long* id, cudaGraph_t* graph,
                                                     const cudaGraphNode_t** nodes,
                                                     const cudaGraphEdgeData** edges,
                                                     size_t* count) {
  const auto capture = capture_of(stream);
  if (id != nullptr) *id = capture ? capture->id : 0;
  if (graph != nullptr) *graph = nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaStreamIsCapturing(stream, status);
}
EMULATED_PUBLIC cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                                               void* data) {
  return note(
      queue(stream, [=](CUstream in) { return ready().cuLaunchHostFunc(in, function, data); }));
}
struct Callback {
  cudaStreamCallback_t function;
  cudaStream_t stream;
  void* data;
};
EMULATED_PUBLIC cudaError_t cudaStreamAddCallback(cudaStream_t stream,
                                                  cudaStreamCallback_t function, void* data,
                                                  unsigned) {
  return note(queue(stream, [=](CUstream in) {
    return ready().cuLaunchHostFunc(
        in,
        [](void* state) {
          auto* callback = static_cast<Callback*>(state);
          callback->function(callback->stream, cudaSuccess, callback->data);
          delete callback;
        },
        new Callback{function, stream, data});
  }));
}
EMULATED_PUBLIC cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return note(ready().cuEventCreate(event, flags & 3));
}
EMULATED_PUBLIC cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
EMULATED_PUBLIC cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return note(ready().cuEventDestroy(event));
}
EMULATED_PUBLIC cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const auto capture = capture_of(stream)) {
    const std::lock_guard lock(capture_mutex);
    capture->events.insert(event);
    return cudaSuccess;
  }
  return note(ready().cuEventRecord(event, stream));
}
EMULATED_PUBLIC cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                                     unsigned) {
  return cudaEventRecord(event, stream);
}
EMULATED_PUBLIC cudaError_t cudaEventQuery(cudaEvent_t event) {
  return note(ready().cuEventQuery(event));
}
EMULATED_PUBLIC cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return note(ready().cuEventSynchronize(event));
}
EMULATED_PUBLIC cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return note(ready().cuEventElapsedTime(ms, start, end));
}
EMULATED_PUBLIC cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return note(
      ready().cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)));
}
