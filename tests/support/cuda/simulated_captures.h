// SPDX-License-Identifier: Apache-2.0
//
// SimulatedCaptures: which streams of the simulated driver capture which graph, and the calls that
// nobody must make meanwhile. All rules of captures are here. Work that is queued in a capturing
// stream becomes a node of the graph. An event that was recorded in such a stream stands for the
// nodes before it until it is recorded elsewhere or destroyed. A stream that waits for such an
// event joins the capture; after the capture nobody may wait for it. A call that CUDA forbids makes
// the capture invalid: from then on its streams refuse work, and its end gives no graph.
//
// One mutex guards all of it. Only begin() and end() always take it; every other call skips it
// while no stream captures and no event of a capture is left. Any thread may call. The errors are
// those that CUDA's documentation names.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "support/cuda/simulated_devices.h"
#include "support/cuda/simulated_graph.h"
#include "support/cuda/simulated_stream.h"

namespace tencache {

class SimulatedCaptures {
 public:
  struct State {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    uint64_t id = 0;
    SimulatedGraph* graph = nullptr;
    const GraphNodes* last = nullptr;  // until the stream's next call
  };

  explicit SimulatedCaptures(const SimulatedDevices& devices) : devices_(devices) {}
  SimulatedCaptures(const SimulatedCaptures&) = delete;
  SimulatedCaptures& operator=(const SimulatedCaptures&) = delete;

  CUresult begin(const SimulatedStream& stream, CUstreamCaptureMode mode) TENCACHE_EXCLUDES(mutex_);
  CUresult end(const SimulatedStream& stream, std::unique_ptr<SimulatedGraph>* graph)
      TENCACHE_EXCLUDES(mutex_);
  State state(const SimulatedStream& stream) const TENCACHE_EXCLUDES(mutex_);
  bool is_capturing(const SimulatedStream& stream) const TENCACHE_EXCLUDES(mutex_) {
    return state(stream).status != CU_STREAM_CAPTURE_STATUS_NONE;
  }
  /// Whether the stream is the legacy one and would wait for a blocking stream that captures.
  bool is_unusable(const SimulatedStream& stream) const TENCACHE_EXCLUDES(mutex_);

  // The next three return nothing where no capture is concerned; then the stream itself has to do
  // what is asked. In that case record() still lets the event forget an earlier capture.

  /// Adds the work to the graph that the stream captures.
  std::optional<CUresult> add(const SimulatedStream& stream, GraphWork work)
      TENCACHE_EXCLUDES(mutex_);
  std::optional<CUresult> record(CUevent event, const SimulatedStream& stream)
      TENCACHE_EXCLUDES(mutex_);
  std::optional<CUresult> wait(const SimulatedStream& stream, CUevent event)
      TENCACHE_EXCLUDES(mutex_);
  void forget(const SimulatedStream& stream) TENCACHE_EXCLUDES(mutex_);
  void forget(CUevent event) TENCACHE_EXCLUDES(mutex_);

  // Checks of what the calling thread may do. A check that forbids it makes a capture invalid.

  /// Whether the thread may use the stream at all.
  CUresult check_use(const SimulatedStream& stream) TENCACHE_EXCLUDES(mutex_);
  /// Whether it may give the stream work that no graph can hold.
  CUresult check_outside(const SimulatedStream& stream) TENCACHE_EXCLUDES(mutex_);
  /// Whether it may wait for the stream, or query it.
  CUresult check_wait(const SimulatedStream& stream) TENCACHE_EXCLUDES(mutex_);
  /// Whether it may wait for the event, or query it.
  CUresult check_wait(CUevent event) TENCACHE_EXCLUDES(mutex_);
  /// Whether it may ask for the event's time.
  CUresult check_uncaptured(CUevent event) TENCACHE_EXCLUDES(mutex_);
  CUresult check_device_wait(int device) TENCACHE_EXCLUDES(mutex_);
  /// Whether it may make a call that CUDA calls potentially unsafe, like cudaMalloc.
  CUresult check_unsafe() TENCACHE_EXCLUDES(mutex_);

 private:
  struct Capture {
    uint64_t id = 0;
    const SimulatedStream* origin = nullptr;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::thread::id thread;
    bool is_invalid = false;
    std::unique_ptr<SimulatedGraph> graph;  // null after the end
  };
  struct Member {
    std::shared_ptr<Capture> capture;
    GraphNodes last;  // the nodes that the stream's next node depends on
  };

  Member* find(const SimulatedStream& stream) TENCACHE_REQUIRES(mutex_);
  void count() TENCACHE_REQUIRES(mutex_);
  // Returns the error where the stream's capture is invalid, or where the stream is the legacy one
  // and a blocking stream captures. In the second case that capture becomes invalid.
  CUresult obstacle(const SimulatedStream& stream) TENCACHE_REQUIRES(mutex_);

  const SimulatedDevices& devices_;
  mutable Mutex mutex_;
  std::map<const SimulatedStream*, Member> members_ TENCACHE_GUARDED_BY(mutex_);
  std::map<CUevent, Member> events_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t last_id_ TENCACHE_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> is_used_ = false;  // there is a member or an event
};

}  // namespace tencache
