// SPDX-License-Identifier: Apache-2.0
//
// SimulatedGraph: the nodes of work of a CUDA graph and their dependencies, in the order in which
// they were captured. SimulatedExecutable: what is made from a graph and launched. A launch queues
// all nodes in one stream, in one of the orders that the graph allows: of the nodes that may run,
// the one that was captured last goes first. That exposes programs that rely on the order of the
// capture alone. A launch calls no function of the driver, as with the real one, so that no launch
// guard sees a replay.
//
// The executable holds the work, and with it the objects that the program gave the graph, until its
// last launch is over, so the graph may be destroyed first. As with CUDA's graphs, one thread at a
// time uses a graph or an executable.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "support/cuda/simulated_stream.h"

namespace tencache {

/// A function that queues something in the given stream; a graph calls it once per launch.
using GraphWork = std::function<CUresult(SimulatedStream&)>;

struct GraphNode;
using GraphNodes = std::vector<GraphNode*>;
struct GraphNode {
  GraphWork work;
  GraphNodes dependencies;
};

class SimulatedGraph {
 public:
  GraphNode* add(GraphWork work, GraphNodes dependencies);
  /// Whether each node that nothing depends on is in `last`.
  bool ends_in(const GraphNodes& last) const;
  const std::vector<std::unique_ptr<GraphNode>>& nodes() const { return nodes_; }
  /// Holds the object as long as this graph, or an executable made from it from now on, exists.
  void keep(std::shared_ptr<void> kept) { kept_.push_back(std::move(kept)); }
  const std::vector<std::shared_ptr<void>>& kept() const { return kept_; }

 private:
  std::vector<std::unique_ptr<GraphNode>> nodes_;
  std::vector<std::shared_ptr<void>> kept_;
};

class SimulatedExecutable {
 public:
  explicit SimulatedExecutable(const SimulatedGraph& graph);
  ~SimulatedExecutable();
  SimulatedExecutable(const SimulatedExecutable&) = delete;
  SimulatedExecutable& operator=(const SimulatedExecutable&) = delete;

  /// Queues the works in the stream. They run after those of earlier launches in any stream.
  CUresult launch(SimulatedStream& stream);
  /// The works in the order of a launch.
  const std::vector<GraphWork>& works() const { return works_; }
  const std::vector<std::shared_ptr<void>>& kept() const { return kept_; }

 private:
  std::vector<GraphWork> works_;
  const std::vector<std::shared_ptr<void>> kept_;
  std::shared_ptr<Marker> last_launch_;  // null before the first
};

}  // namespace tencache
