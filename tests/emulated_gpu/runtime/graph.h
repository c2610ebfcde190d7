// SPDX-License-Identifier: Apache-2.0
//
// A CUDA graph: nodes of work and their dependencies, in the order in which they were captured; and
// the executable made from it. A launch queues all nodes in one stream in that order, which is one
// of the orders that the graph allows. The executable holds the work, and with it the objects that
// the program gave the graph, until its last launch is over, so the graph may be destroyed first.
// As with CUDA's graphs, one thread at a time uses one of them.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace emulated_gpu::runtime {

/// Queues something in the given stream; a graph calls it once a launch.
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
  /// Holds the object as long as this graph, or an executable made from it from now on, exists.
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

  /// Runs after earlier launches, whatever their stream.
  CUresult launch(CUstream stream);

 private:
  std::vector<Work> works_;
  const std::vector<std::shared_ptr<void>> kept_;
  CUevent last_launch_ = nullptr;  // null before the first
};

}  // namespace emulated_gpu::runtime
