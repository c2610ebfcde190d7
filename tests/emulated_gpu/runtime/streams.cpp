// SPDX-License-Identifier: Apache-2.0
//
// The run time's streams and host functions. Work queued in a capturing stream goes to its graph.
// Waiting for such a stream, or querying it, is an error and makes the capture invalid. Any thread
// may call.
#include <algorithm>

#include "capture.h"
#include "contexts.h"
#include "errors.h"
#include "stream_kinds.h"

using namespace emulated_gpu::runtime;

namespace {

constexpr int kPriorityGreatest = -5;  // as cudaDeviceGetStreamPriorityRange says

struct Callback {
  cudaStreamCallback_t function;
  cudaStream_t stream;
  void* data;
};

CUresult call_back(const Callback& callback) {
  auto* job = new Callback(callback);
  const CUresult result = ready().cuLaunchHostFunc(
      callback.stream,
      [](void* state) {
        auto* todo = static_cast<Callback*>(state);
        todo->function(todo->stream, cudaSuccess, todo->data);
        delete todo;
      },
      job);
  if (result != CUDA_SUCCESS) delete job;
  return result;
}

}  // namespace

EMULATED_PUBLIC cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                                         int priority) {
  const CUresult result = ready().cuStreamCreateWithPriority(stream, flags, priority);
  if (result == CUDA_SUCCESS)
    StreamKinds::instance().add(*stream, flags, std::clamp(priority, kPriorityGreatest, 0));
  return note(result);
}
EMULATED_PUBLIC cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
EMULATED_PUBLIC cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
EMULATED_PUBLIC cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Captures::instance().forget(stream);
  StreamKinds::instance().remove(stream);
  return note(ready().cuStreamDestroy(stream));
}
EMULATED_PUBLIC cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  if (priority == nullptr) return note(cudaErrorInvalidValue);
  *priority = StreamKinds::instance().priority(stream);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Driver& d = ready();
  return note_unless(Captures::instance().forbid_outside(stream),
                     [&] { return d.cuStreamQuery(stream); });
}
EMULATED_PUBLIC cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Driver& d = ready();
  return note_unless(Captures::instance().forbid_outside(stream),
                     [&] { return d.cuStreamSynchronize(stream); });
}
EMULATED_PUBLIC cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                                unsigned flags) {
  const Driver& d = ready();
  Captures& captures = Captures::instance();
  // A node of the graph waits for the event that is recorded outside.
  if (flags == cudaEventWaitExternal && captures.is_capturing(stream))
    return note(captures.queue(
        stream, [&d, event](CUstream in) { return d.cuStreamWaitEvent(in, event, 0); }));
  if (const auto captured = captures.wait(stream, event)) return note(*captured);
  return note(d.cuStreamWaitEvent(stream, event, flags));
}
EMULATED_PUBLIC cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                                               void* data) {
  const Driver& d = ready();
  return note(Captures::instance().queue(
      stream, [=, &d](CUstream in) { return d.cuLaunchHostFunc(in, function, data); }));
}
// No graph can hold a callback, unlike a function of cudaLaunchHostFunc.
EMULATED_PUBLIC cudaError_t cudaStreamAddCallback(cudaStream_t stream,
                                                  cudaStreamCallback_t function, void* data,
                                                  unsigned flags) {
  if (function == nullptr || flags != 0) return note(cudaErrorInvalidValue);
  return note_unless(Captures::instance().forbid_outside(stream), [&] {
    return call_back({function, stream, data});
  });
}
