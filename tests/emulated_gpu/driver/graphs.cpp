// SPDX-License-Identifier: Apache-2.0
//
// Graphs apart from streams: what is made from them, their nodes, their ends. stream_table.h has
// captures and launches.
#include <algorithm>

#include "driver/functions.h"
#include "driver/started_driver.h"
#include "support/cuda/simulated_graph.h"

namespace tencache {
namespace {

SimulatedGraph* graph_of(CUgraph handle) { return reinterpret_cast<SimulatedGraph*>(handle); }
SimulatedExecutable* executable_of(CUgraphExec handle) {
  return reinterpret_cast<SimulatedExecutable*>(handle);
}

// Hands out lists as CUDA does: the number alone, or as many as there is room for.
CUresult give(const GraphNodes& found, CUgraphNode* nodes, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodes == nullptr) {
    *count = found.size();
    return CUDA_SUCCESS;
  }
  std::fill_n(nodes, *count, nullptr);
  *count = std::min(*count, found.size());
  for (size_t i = 0; i < *count; ++i) nodes[i] = reinterpret_cast<CUgraphNode>(found[i]);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult instantiate_graph(SimulatedDriver& /*driver*/, CUgraphExec* made, CUgraph graph,
                           unsigned long long flags) {
  if (made == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // These two flags change no launch here: no node allocates, and priorities only advise. The other
  // flags upload at once, or launch from the device.
  constexpr uint64_t kFlags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                              CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if ((flags & ~kFlags) != 0) return refuse("cuGraphInstantiate with such flags");
  *made = reinterpret_cast<CUgraphExec>(new SimulatedExecutable(*graph_of(graph)));
  return CUDA_SUCCESS;
}

CUresult graph_nodes(SimulatedDriver& /*driver*/, CUgraph graph, CUgraphNode* nodes,
                     size_t* count) {
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphNodes all;
  for (const auto& node : graph_of(graph)->nodes()) all.push_back(node.get());
  return give(all, nodes, count);
}

CUresult node_dependencies(SimulatedDriver& /*driver*/, CUgraphNode node, CUgraphNode* nodes,
                           CUgraphEdgeData* edges, size_t* count) {
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = give(reinterpret_cast<GraphNode*>(node)->dependencies, nodes, count);
  if (result == CUDA_SUCCESS && nodes != nullptr && edges != nullptr) {
    std::fill_n(edges, *count, CUgraphEdgeData{});
  }
  return result;
}

CUresult destroy_graph(SimulatedDriver& /*driver*/, CUgraph graph) {
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  delete graph_of(graph);
  return CUDA_SUCCESS;
}

CUresult destroy_executable(SimulatedDriver& /*driver*/, CUgraphExec graph) {
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  delete executable_of(graph);
  return CUDA_SUCCESS;
}

}  // namespace tencache
