// SPDX-License-Identifier: Apache-2.0
//
// The run time's functions of captures, graphs, and the objects that graphs own. The driver's
// functions do the work: handles, flags and errors are the same. Any thread may call.
#include "contexts.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

EMULATED_PUBLIC cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                                   cudaStreamCaptureMode mode) {
  return note(ready().cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)));
}
EMULATED_PUBLIC cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return note(ready().cuStreamEndCapture(stream, graph));
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
  cuuint64_t number = 0;
  const CUresult result = ready().cuStreamGetCaptureInfo(
      stream, reinterpret_cast<CUstreamCaptureStatus*>(status), &number, graph, nodes,
      reinterpret_cast<const CUgraphEdgeData**>(edges), count);
  if (id != nullptr) *id = number;
  return note(result);
}
EMULATED_PUBLIC cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return note(
      driver().cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)));
}

// Both names have the same parameters.
EMULATED_PUBLIC cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                                 unsigned long long flags) {
  return note(ready().cuGraphInstantiate(made, graph, flags));
}
EMULATED_PUBLIC cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph,
                                                          unsigned long long flags) {
  return note(ready().cuGraphInstantiate(made, graph, flags));
}
EMULATED_PUBLIC cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return note(ready().cuGraphLaunch(graph, stream));
}
EMULATED_PUBLIC cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                                              size_t* count) {
  return note(driver().cuGraphGetNodes(graph, nodes, count));
}
EMULATED_PUBLIC cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node,
                                                         cudaGraphNode_t* nodes,
                                                         cudaGraphEdgeData* edges, size_t* count) {
  return note(driver().cuGraphNodeGetDependencies(
      node, nodes, reinterpret_cast<CUgraphEdgeData*>(edges), count));
}
EMULATED_PUBLIC cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return note(driver().cuGraphDestroy(graph));
}
EMULATED_PUBLIC cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return note(driver().cuGraphExecDestroy(graph));
}

EMULATED_PUBLIC cudaError_t cudaUserObjectCreate(cudaUserObject_t* made, void* value,
                                                 cudaHostFn_t destroy, unsigned count,
                                                 unsigned flags) {
  return note(driver().cuUserObjectCreate(made, value, destroy, count, flags));
}
EMULATED_PUBLIC cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
  return note(driver().cuUserObjectRetain(object, count));
}
EMULATED_PUBLIC cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  return note(driver().cuUserObjectRelease(object, count));
}
EMULATED_PUBLIC cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                      unsigned count, unsigned flags) {
  return note(driver().cuGraphRetainUserObject(graph, object, count, flags));
}
