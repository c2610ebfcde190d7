// SPDX-License-Identifier: Apache-2.0
//
// The run time's events. Any thread may call.
#include "contexts.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

EMULATED_PUBLIC cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if ((flags & cudaEventInterprocess) != 0) return refuse("an event for other processes");
  return note(ready().cuEventCreate(event, flags));
}
EMULATED_PUBLIC cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
EMULATED_PUBLIC cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return note(ready().cuEventDestroy(event));
}
EMULATED_PUBLIC cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                                     unsigned flags) {
  return note(ready().cuEventRecordWithFlags(event, stream, flags));
}
EMULATED_PUBLIC cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
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
