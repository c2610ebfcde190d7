// SPDX-License-Identifier: Apache-2.0
//
// Which streams capture which graph, and the calls that a program must not make meanwhile. Work
// queued in a capturing stream becomes a node of the graph. An event that was recorded in such a
// stream stands for the nodes before it, also after the capture, until it is recorded elsewhere; a
// stream that waits for it joins the capture. A call that CUDA forbids makes the capture invalid:
// from then on its streams refuse work, and its end gives no graph.
//
// One mutex guards all of it; while nothing is captured no call takes it. Any thread may call. The
// errors are those that CUDA's documentation names.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "graph.h"

namespace emulated_gpu::runtime {

class Captures {
 public:
  struct State {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    Graph* graph = nullptr;
    const Nodes* last = nullptr;  // until the stream's next call
  };

  /// Lives for ever.
  static Captures& instance();

  cudaError_t begin(CUstream stream, cudaStreamCaptureMode mode);
  cudaError_t end(CUstream stream, std::unique_ptr<Graph>* graph);
  State state(CUstream stream) const;
  bool is_capturing(CUstream stream) const;

  /// Queues the work in the stream, or adds it to the graph that the stream captures.
  CUresult queue(CUstream stream, Work work);
  /// Nothing where the stream captures no graph: then the driver has to record, or to wait.
  std::optional<cudaError_t> record(CUevent event, CUstream stream);
  std::optional<cudaError_t> wait(CUstream stream, CUevent event);
  void forget(CUstream stream);
  void forget(CUevent event);

  /// Whether the stream may be given work that no graph can hold, be waited for, or be queried.
  cudaError_t forbid_outside(CUstream stream);
  cudaError_t check_use(CUstream stream);
  /// Whether the host may wait for the event or query it.
  cudaError_t forbid_captured(CUevent event);
  /// Whether the current device may be waited for.
  cudaError_t forbid_device_wait();
  /// Whether the calling thread may make a call that CUDA calls potentially unsafe, like
  /// cudaMalloc.
  cudaError_t forbid_unsafe();

 private:
  struct Capture {
    unsigned long long id = 0;
    CUstream origin = nullptr;
    CUcontext context = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;
    bool is_invalid = false;
    std::unique_ptr<Graph> graph;  // null after the end
  };
  struct Member {
    std::shared_ptr<Capture> capture;
    Nodes last;  // the nodes that the stream's next node depends on
  };

  // The next four need the mutex.
  Member* find(CUstream stream);
  void add(CUstream stream, Member member);
  void count();
  // The error where the stream's capture is invalid, or a blocking stream captures and the stream
  // is the legacy one.
  cudaError_t obstacle(CUstream stream);

  mutable std::mutex mutex_;
  std::map<CUstream, Member> members_;
  std::map<CUevent, Member> events_;
  unsigned long long last_id_ = 0;
  std::atomic<bool> is_used_ = false;  // there is a member or an event
};

}  // namespace emulated_gpu::runtime
