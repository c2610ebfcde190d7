// SPDX-License-Identifier: Apache-2.0
//
// Captures from begin to end, and the graphs made of them. A graph's handle is its address.
#include "capture.h"
#include "driver_table.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

namespace {
unsigned long long last_capture_id = 0;  // under capture_mutex
}  // namespace

EMULATED_PUBLIC cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  ready();
  if (stream == nullptr || stream == cudaStreamLegacy)
    return note(cudaErrorStreamCaptureUnsupported);
  if (capture_of(stream)) return note(cudaErrorIllegalState);
  const std::lock_guard lock(capture_mutex);
  captures[stream] =
      std::make_shared<Capture>(++last_capture_id, stream, new Graph, std::set<CUevent>{});
  ++capture_count;
  driver().set_capturing(stream, 1);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const auto capture = capture_of(stream);
  if (capture == nullptr || capture->origin != stream) return note(cudaErrorIllegalState);
  const std::lock_guard lock(capture_mutex);
  std::erase_if(captures, [&](const auto& entry) {
    if (entry.second != capture) return false;
    driver().set_capturing(entry.first, 0);
    return true;
  });
  --capture_count;
  *graph = reinterpret_cast<cudaGraph_t>(capture->graph);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                                          unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const auto& node : reinterpret_cast<Graph*>(exec)->nodes) {
    const CUresult result = queue(stream, node);
    if (result != CUDA_SUCCESS) return note(result);
  }
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                                              size_t* count) {
  if (nodes != nullptr) return refuse("cudaGraphGetNodes");
  *count = reinterpret_cast<Graph*>(graph)->nodes.size();
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<Graph*>(exec);
  return cudaSuccess;
}
