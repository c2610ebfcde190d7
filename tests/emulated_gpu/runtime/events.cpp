// SPDX-License-Identifier: Apache-2.0
//
// The run time's events. An event last recorded in a capturing stream stands for nodes of a graph:
// streams may wait for it, the host may not. An event recorded as external is a node itself, which
// records the event with each launch. Any thread may call.
#include "capture.h"
#include "contexts.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

namespace {

// Whether the host may wait for the event or query it; both calls are potentially unsafe.
cudaError_t forbid(cudaEvent_t event) {
  const cudaError_t error = Captures::instance().forbid_captured(event);
  return error != cudaSuccess ? error : Captures::instance().forbid_unsafe();
}

}  // namespace

EMULATED_PUBLIC cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if ((flags & cudaEventInterprocess) != 0) return refuse("an event for other processes");
  return note(ready().cuEventCreate(event, flags));
}
EMULATED_PUBLIC cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
EMULATED_PUBLIC cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Captures::instance().forget(event);
  return note(ready().cuEventDestroy(event));
}
EMULATED_PUBLIC cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                                     unsigned flags) {
  const Driver& d = ready();
  if (flags == cudaEventRecordExternal && Captures::instance().is_capturing(stream))
    return note(Captures::instance().queue(
        stream, [&d, event](CUstream in) { return d.cuEventRecord(event, in); }));
  if (flags != cudaEventRecordDefault) return note(cudaErrorInvalidValue);
  if (const auto captured = Captures::instance().record(event, stream)) return note(*captured);
  return note(d.cuEventRecord(event, stream));
}
EMULATED_PUBLIC cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
EMULATED_PUBLIC cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Driver& d = ready();
  return note_unless(forbid(event), [&] { return d.cuEventQuery(event); });
}
EMULATED_PUBLIC cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Driver& d = ready();
  return note_unless(forbid(event), [&] { return d.cuEventSynchronize(event); });
}
EMULATED_PUBLIC cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  const Driver& d = ready();
  for (cudaEvent_t event : {start, end}) {
    const cudaError_t error = Captures::instance().forbid_captured(event);
    if (error != cudaSuccess) return note(error);
  }
  return note(d.cuEventElapsedTime(ms, start, end));
}
