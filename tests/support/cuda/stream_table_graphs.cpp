// SPDX-License-Identifier: Apache-2.0
//
// The streams' captures of graphs, and the launches of what was captured. The handle of a graph, of
// a node or of an executable graph is its address; the program owns the graphs and executable
// graphs that it was given.
#include <memory>
#include <utility>

#include "base/check.h"
#include "support/cuda/stream_table.h"

namespace tencache {

CUresult StreamTable::queue(SimulatedStream& stream, const GraphWork& work) {
  if (const auto captured = captures_.add(stream, work)) return *captured;
  return work(stream);
}

// An action that is not captured moves into the stream, and no copy of it stays behind. So it ends,
// with all that it holds, before anybody sees that it has run.
CUresult StreamTable::queue(SimulatedStream& stream, SimulatedStream::Action action,
                            WorkKind kind) {
  if (captures_.is_capturing(stream)) {
    return queue(stream, GraphWork([this, action = std::move(action), kind](SimulatedStream& in) {
                   push(in, action, nullptr, kind);
                   return CUDA_SUCCESS;
                 }));
  }
  const CUresult error = captures_.check_use(stream);
  if (error == CUDA_SUCCESS) push(stream, std::move(action), nullptr, kind);
  return error;
}

CUresult StreamTable::begin_capture(CUstream stream, CUstreamCaptureMode mode) {
  const StreamPointer found = find(stream);
  return found != nullptr ? captures_.begin(*found, mode) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult StreamTable::end_capture(CUstream stream, CUgraph* graph) {
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *graph = nullptr;
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::unique_ptr<SimulatedGraph> made;
  const CUresult result = captures_.end(*found, &made);
  *graph = reinterpret_cast<CUgraph>(made.release());
  return result;
}

CUresult StreamTable::is_capturing(CUstream stream, CUstreamCaptureStatus* status) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // To ask is not to use: the capture stays valid.
  if (captures_.is_unusable(*found)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  *status = captures_.state(*found).status;
  return CUDA_SUCCESS;
}

CUresult StreamTable::capture_info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** nodes,
                                   const CUgraphEdgeData** edges, size_t* count) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (captures_.is_unusable(*found)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const SimulatedCaptures::State state = captures_.state(*found);
  *status = state.status;
  if (id != nullptr) *id = state.id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(state.graph);
  if (nodes != nullptr) {
    *nodes =
        state.last != nullptr ? reinterpret_cast<const CUgraphNode*>(state.last->data()) : nullptr;
  }
  if (edges != nullptr) *edges = nullptr;  // no edge has data
  if (count != nullptr) *count = state.last != nullptr ? state.last->size() : 0;
  return CUDA_SUCCESS;
}

CUresult StreamTable::launch_graph(CUgraphExec graph, CUstream stream) {
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  auto* const executable = reinterpret_cast<SimulatedExecutable*>(graph);
  // Within another capture the graph's nodes become nodes of that capture's graph, in the order of
  // the stream.
  if (captures_.is_capturing(*found)) {
    for (const GraphWork& work : executable->works()) {
      const CUresult result = queue(*found, work);
      if (result != CUDA_SUCCESS) return result;
    }
    SimulatedGraph* const outer = captures_.state(*found).graph;
    for (const auto& kept : executable->kept()) outer->keep(kept);
    return CUDA_SUCCESS;
  }
  const CUresult error = captures_.check_use(*found);
  return error != CUDA_SUCCESS ? error : executable->launch(*found);
}

void StreamTable::set_capturing(CUstream stream, bool is_capturing) {
  const StreamPointer found = find(stream);
  TENCACHE_CHECK(found != nullptr, "there is no stream %p", static_cast<void*>(stream));
  if (is_capturing == captures_.is_capturing(*found)) return;
  std::unique_ptr<SimulatedGraph> dropped;
  const CUresult result = is_capturing ? captures_.begin(*found, CU_STREAM_CAPTURE_MODE_GLOBAL)
                                       : captures_.end(*found, &dropped);
  TENCACHE_CHECK(result == CUDA_SUCCESS, "error %d: a call that no capture allows was made",
                 static_cast<int>(result));
}

}  // namespace tencache
