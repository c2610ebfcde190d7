// SPDX-License-Identifier: Apache-2.0
//
// A CUDA graph: nodes of work and what each depends on, in the order in which they were captured,
// and what is made of it to be launched. A launch queues all nodes in one stream in that order,
// which is one of the orders that the graph allows. The executable keeps the work, so that the
// graph may be destroyed before it, and with it what the program has given the graph to keep, until
// its last launch is over. As with CUDA's graphs, one thread at a time uses one of them.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace emulated_gpu::runtime {

/// Queues something in the stream that it is given; a graph calls it once a launch.
using Work = std::function<CUresult(CUstream)>;

struct Node;
using Nodes = std::vector<Node*>;
struct Node {
  Work work;
  Nodes dependencies;
};

class Graph {
 public:
  Node* add(Work work, Nodes dependencies);
  /// Whether each node that nothing depends on is one of these.
  bool ends_in(const Nodes& last) const;
  const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }
  /// As long as there is this graph or an executable made of it from now on.
  void keep(std::shared_ptr<void> kept) { kept_.push_back(std::move(kept)); }
  const std::vector<std::shared_ptr<void>>& kept() const { return kept_; }

 private:
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::shared_ptr<void>> kept_;
};

class Executable {
 public:
  explicit Executable(const Graph& graph);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  /// After the launches before it, in whatever stream they were.
  CUresult launch(CUstream stream);

 private:
  std::vector<Work> works_;
  const std::vector<std::shared_ptr<void>> kept_;
  CUevent last_launch_ = nullptr;  // null before the first
};

}  // namespace emulated_gpu::runtime
