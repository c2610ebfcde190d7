// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/simulated_graph.h"

#include <algorithm>
#include <set>

namespace tencache {

GraphNode* SimulatedGraph::add(GraphWork work, GraphNodes dependencies) {
  GraphNode node = {std::move(work), std::move(dependencies)};
  nodes_.push_back(std::make_unique<GraphNode>(std::move(node)));
  return nodes_.back().get();
}

bool SimulatedGraph::ends_in(const GraphNodes& last) const {
  std::set<const GraphNode*> ended(last.begin(), last.end());
  for (const auto& node : nodes_) {
    ended.insert(node->dependencies.begin(), node->dependencies.end());
  }
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [&](const auto& node) { return ended.contains(node.get()); });
}

SimulatedExecutable::SimulatedExecutable(const SimulatedGraph& graph) : kept_(graph.kept()) {
  for (const auto& node : graph.nodes()) works_.push_back(node->work);
}

SimulatedExecutable::~SimulatedExecutable() {
  if (last_launch_ != nullptr && !kept_.empty()) last_launch_->wait();
}

CUresult SimulatedExecutable::launch(SimulatedStream& stream) {
  if (last_launch_ != nullptr) {
    stream.push([moment = last_launch_](SimulatedStream& worker, uint64_t) {
      return worker.wait_for(moment);
    });
  }
  for (const GraphWork& work : works_) {
    if (const CUresult result = work(stream); result != CUDA_SUCCESS) return result;
  }
  last_launch_ = std::make_shared<Marker>();
  stream.push(nullptr, last_launch_);
  return CUDA_SUCCESS;
}

}  // namespace tencache
