// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/simulated_graph.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>

namespace tencache {
namespace {

std::vector<GraphWork> in_order_of_launch(const SimulatedGraph& graph) {
  const auto& nodes = graph.nodes();
  std::map<const GraphNode*, size_t> numbers;
  std::vector<std::vector<size_t>> followers(nodes.size());
  std::vector<size_t> awaited(nodes.size());  // the dependencies that have not run
  std::priority_queue<size_t> ready;          // its top is the node that was captured last
  for (size_t number = 0; number < nodes.size(); ++number) {
    numbers[nodes[number].get()] = number;
    for (const GraphNode* const before : nodes[number]->dependencies) {
      followers[numbers.at(before)].push_back(number);
    }
    awaited[number] = nodes[number]->dependencies.size();
    if (awaited[number] == 0) ready.push(number);
  }
  std::vector<GraphWork> works;
  while (!ready.empty()) {
    const size_t next = ready.top();
    ready.pop();
    works.push_back(nodes[next]->work);
    for (const size_t follower : followers[next]) {
      if (--awaited[follower] == 0) ready.push(follower);
    }
  }
  return works;
}

}  // namespace

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

SimulatedExecutable::SimulatedExecutable(const SimulatedGraph& graph)
    : works_(in_order_of_launch(graph)), kept_(graph.kept()) {}

SimulatedExecutable::~SimulatedExecutable() {
  if (last_launch_ != nullptr && !kept_.empty()) last_launch_->wait();
}

CUresult SimulatedExecutable::launch(SimulatedStream& stream) {
  if (last_launch_ != nullptr) {
    stream.push([moment = last_launch_](SimulatedStream& worker, uint64_t) {
      return worker.wait_for(moment);
    });
  }
  CUresult result = CUDA_SUCCESS;
  for (const GraphWork& work : works_) {
    if ((result = work(stream)) != CUDA_SUCCESS) break;
  }
  last_launch_ = std::make_shared<Marker>();
  stream.push(nullptr, last_launch_);
  return result;
}

}  // namespace tencache
