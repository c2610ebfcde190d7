// SPDX-License-Identifier: Apache-2.0
#include "graph.h"

#include <algorithm>
#include <set>
#include <utility>

#include "capture.h"
#include "contexts.h"

namespace emulated_gpu::runtime {

Node* Graph::add(Work work, Nodes dependencies) {
  nodes_.push_back(std::make_unique<Node>(std::move(work), std::move(dependencies)));
  return nodes_.back().get();
}

bool Graph::ends_in(const Nodes& last) const {
  std::set<const Node*> ended(last.begin(), last.end());
  for (const auto& node : nodes_)
    ended.insert(node->dependencies.begin(), node->dependencies.end());
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [&](const auto& node) { return ended.contains(node.get()); });
}

Executable::Executable(const Graph& graph) : kept_(graph.kept()) {
  for (const auto& node : graph.nodes()) works_.push_back(node->work);
}

Executable::~Executable() {
  if (last_launch_ == nullptr) return;
  if (!kept_.empty()) driver().cuEventSynchronize(last_launch_);
  driver().cuEventDestroy(last_launch_);
}

CUresult Executable::launch(CUstream stream) {
  const Driver& d = ready();
  Captures& captures = Captures::instance();
  // Within another capture its nodes become nodes of that one, in the order of the stream.
  const bool is_captured = captures.is_capturing(stream);
  CUresult result = CUDA_SUCCESS;
  if (!is_captured) {
    result = last_launch_ == nullptr
                 ? d.cuEventCreate(&last_launch_, CU_EVENT_DISABLE_TIMING)
                 : d.cuStreamWaitEvent(stream, last_launch_, CU_EVENT_WAIT_DEFAULT);
  }
  for (const Work& work : works_) {
    if (result != CUDA_SUCCESS) return result;
    result = captures.queue(stream, work);
  }
  if (result == CUDA_SUCCESS && !is_captured) result = d.cuEventRecord(last_launch_, stream);
  return result;
}

}  // namespace emulated_gpu::runtime
