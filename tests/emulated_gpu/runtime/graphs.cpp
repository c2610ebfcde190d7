// SPDX-License-Identifier: Apache-2.0
//
// The run time's functions of captures and graphs. The handle of a graph, of a node or of an
// executable graph is its address. The program owns the handles it was given, and destroys them.
// Any thread may call.
#include <algorithm>
#include <memory>

#include "capture.h"
#include "contexts.h"
#include "errors.h"
#include "graph.h"

using namespace emulated_gpu::runtime;

namespace {

Graph* graph_of(cudaGraph_t handle) { return reinterpret_cast<Graph*>(handle); }
Executable* executable_of(cudaGraphExec_t handle) { return reinterpret_cast<Executable*>(handle); }

// Hands out lists as CUDA does: the number alone, or as many as there is room for.
cudaError_t give(const Nodes& found, cudaGraphNode_t* nodes, size_t* count) {
  if (count == nullptr) return note(cudaErrorInvalidValue);
  if (nodes != nullptr) {
    std::fill_n(nodes, *count, nullptr);
    *count = std::min(*count, found.size());
    for (size_t i = 0; i < *count; ++i) nodes[i] = reinterpret_cast<cudaGraphNode_t>(found[i]);
  } else {
    *count = found.size();
  }
  return cudaSuccess;
}

cudaError_t instantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
  if (made == nullptr || graph == nullptr) return note(cudaErrorInvalidValue);
  // Neither flag changes a launch here: no node allocates, and priorities only advise. The others
  // upload at once, or launch from the device.
  constexpr uint64_t kFlags =
      cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUseNodePriority;
  if ((flags & ~kFlags) != 0) return refuse("an executable graph with such flags");
  *made = reinterpret_cast<cudaGraphExec_t>(new Executable(*graph_of(graph)));
  return cudaSuccess;
}

}  // namespace

EMULATED_PUBLIC cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                                   cudaStreamCaptureMode mode) {
  return note(Captures::instance().begin(stream, mode));
}
EMULATED_PUBLIC cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (graph == nullptr) return note(cudaErrorInvalidValue);
  std::unique_ptr<Graph> made;
  const cudaError_t error = Captures::instance().end(stream, &made);
  *graph = reinterpret_cast<cudaGraph_t>(made.release());
  return note(error);
}
EMULATED_PUBLIC cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                                  cudaStreamCaptureStatus* status) {
  if (status == nullptr) return note(cudaErrorInvalidValue);
  *status = cudaStreamCaptureStatusNone;
  const Captures::State state = Captures::instance().state(stream);
  if (state.status != cudaStreamCaptureStatusNone) {
    *status = state.status;
    return cudaSuccess;
  }
  return note(Captures::instance().check_use(stream));
}
EMULATED_PUBLIC cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                                     cudaStreamCaptureStatus* status,
                                                     unsigned long long* id, cudaGraph_t* graph,
                                                     const cudaGraphNode_t** nodes,
                                                     const cudaGraphEdgeData** edges,
                                                     size_t* count) {
  if (status == nullptr) return note(cudaErrorInvalidValue);
  const Captures::State state = Captures::instance().state(stream);
  *status = state.status;
  if (id != nullptr) *id = state.id;
  if (graph != nullptr) *graph = reinterpret_cast<cudaGraph_t>(state.graph);
  if (nodes != nullptr)
    *nodes = state.last != nullptr ? reinterpret_cast<const cudaGraphNode_t*>(state.last->data())
                                   : nullptr;
  if (edges != nullptr) *edges = nullptr;  // no edge has data
  if (count != nullptr) *count = state.last != nullptr ? state.last->size() : 0;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return note(
      driver().cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)));
}

// From CUDA 13 on both names have the same parameters.
EMULATED_PUBLIC cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                                 unsigned long long flags) {
  return instantiate(made, graph, flags);
}
EMULATED_PUBLIC cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph,
                                                          unsigned long long flags) {
  return instantiate(made, graph, flags);
}
EMULATED_PUBLIC cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (graph == nullptr) return note(cudaErrorInvalidValue);
  return note(executable_of(graph)->launch(stream));
}
EMULATED_PUBLIC cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                                              size_t* count) {
  if (graph == nullptr) return note(cudaErrorInvalidValue);
  Nodes all;
  for (const auto& node : graph_of(graph)->nodes()) all.push_back(node.get());
  return give(all, nodes, count);
}
EMULATED_PUBLIC cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node,
                                                         cudaGraphNode_t* nodes,
                                                         cudaGraphEdgeData* edges, size_t* count) {
  if (node == nullptr) return note(cudaErrorInvalidValue);
  const cudaError_t error = give(reinterpret_cast<Node*>(node)->dependencies, nodes, count);
  if (error == cudaSuccess && nodes != nullptr && edges != nullptr)
    std::fill_n(edges, *count, cudaGraphEdgeData{});
  return error;
}
EMULATED_PUBLIC cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (graph == nullptr) return note(cudaErrorInvalidValue);
  delete graph_of(graph);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  if (graph == nullptr) return note(cudaErrorInvalidValue);
  delete executable_of(graph);
  return cudaSuccess;
}
