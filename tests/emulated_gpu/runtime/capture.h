// SPDX-License-Identifier: Apache-2.0
//
// Graphs: what is queued in a stream that captures is kept as a callable. A launch queues all of
// them in one stream, in the order in which they came, which is one of the orders that the graph
// allows. One mutex guards all captures; any thread may call.
#pragma once

#include <cuda.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace emulated_gpu::runtime {

struct Graph {
  std::vector<std::function<CUresult(CUstream)>> nodes;
};
struct Capture {
  unsigned long long id = 0;
  CUstream origin = nullptr;
  Graph* graph = nullptr;
  std::set<CUevent> events;  // recorded in it
};
extern std::mutex capture_mutex;
extern std::map<CUstream, std::shared_ptr<Capture>> captures;
extern std::atomic<int> capture_count;

std::shared_ptr<Capture> capture_of(CUstream stream);
std::shared_ptr<Capture> capture_with(CUevent event);

// Queues it now, or keeps it where the stream captures.
template <typename Push>
CUresult queue(CUstream stream, Push push) {
  if (const auto capture = capture_of(stream)) {
    const std::lock_guard lock(capture_mutex);
    capture->graph->nodes.emplace_back(std::move(push));
    return CUDA_SUCCESS;
  }
  return push(stream);
}
}  // namespace emulated_gpu::runtime
