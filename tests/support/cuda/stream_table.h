// SPDX-License-Identifier: Apache-2.0
//
// StreamTable: the streams and events of the simulated driver and the work that is put into them:
// copies, kernels, host functions, waits and writes of values. A method with the name of a function
// of the driver has that function's parameters.
//
//   - Each device has a NULL stream of its own; a call that names the NULL stream means that of the
//     calling thread's current device. It is CUDA's legacy stream: its work waits for what the
//     blocking streams of its device were given before, and their later work waits for it. Streams
//     that are made as non-blocking take no part in that.
//   - An event stands for the last moment that was recorded. Recording it again, or destroying it,
//     changes nothing for streams that already wait.
//   - A stream and an event belong to the device that is current when they are made. An event is
//     recorded in a stream of its device (CUDA_ERROR_INVALID_HANDLE otherwise); any stream may wait
//     for it. A kernel goes into a stream of the current device, and reaches what that device has
//     access to. A copy goes into any stream and reaches each device's memory.
//   - Copies, memsets and values are checked when they are called (CUDA_ERROR_INVALID_VALUE) and
//     when they run (the context fails); kernels only when they run. Host memory that a call found
//     registered must still be so when the work runs.
//   - Outside a capture, a copy to pageable memory ends before the call returns, and one from
//     pageable memory is staged: the call returns once it has read the source, and the bytes arrive
//     in the stream's order.
//   - Work that is given to a stream that captures becomes a node of its graph, and runs with each
//     launch of the graph (simulated_captures.h).
//   - A destroyed stream finishes its work. A call that names its handle ends the process, as with
//     the real driver, which follows the pointer. The driver's end drops all work.
//
// Threads: any but those of streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "support/cuda/host_registrations.h"
#include "support/cuda/simulated_captures.h"
#include "support/cuda/simulated_devices.h"
#include "support/cuda/simulated_driver_config.h"
#include "support/cuda/simulated_graph.h"
#include "support/cuda/simulated_memory.h"
#include "support/cuda/simulated_stream.h"

namespace tencache {

struct Kernel {
  std::vector<DeviceRange> touches;
  std::function<void()> run;
  uint64_t duration_ns = 0;
  std::function<void()> explain = {};  // called when a range is not accessible, before the failure
  std::vector<DeviceRange> registered = {};  // of the host
};

class StreamTable {
 public:
  StreamTable(const SimulatedDriverConfig& config, const SimulatedDevices& devices,
              SimulatedMemory& memory, const HostRegistrations& host, StickyFailure& failure);
  ~StreamTable();
  StreamTable(const StreamTable&) = delete;
  StreamTable& operator=(const StreamTable&) = delete;

  /// Ends the process, with the function's name, where a call names a stream that does not exist.
  void expect_stream(CUstream stream, std::string_view function) const TENCACHE_EXCLUDES(mutex_);

  CUresult create_stream(CUstream* stream, unsigned flags, int priority);
  CUresult destroy_stream(CUstream stream);
  CUresult query_stream(CUstream stream);
  CUresult synchronize_stream(CUstream stream);
  CUresult wait_event(CUstream stream, CUevent event, unsigned flags);
  CUresult begin_capture(CUstream stream, CUstreamCaptureMode mode);
  CUresult end_capture(CUstream stream, CUgraph* graph);
  CUresult is_capturing(CUstream stream, CUstreamCaptureStatus* status);
  CUresult capture_info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                        CUgraph* graph, const CUgraphNode** nodes, const CUgraphEdgeData** edges,
                        size_t* count);
  CUresult launch_graph(CUgraphExec graph, CUstream stream);
  /// See SimulatedDriver. REQUIRES: the stream exists.
  void set_capturing(CUstream stream, bool is_capturing);
  SimulatedCaptures& captures() { return captures_; }
  /// Supports only the comparisons EQ and GEQ.
  CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags);
  CUresult write_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags);
  CUresult write_value32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
  CUresult launch_host_function(CUstream stream, CUhostFn function, void* data);
  CUresult add_callback(CUstream stream, CUstreamCallback function, void* data, unsigned flags);

  CUresult create_event(CUevent* event, unsigned flags);
  CUresult destroy_event(CUevent event);
  CUresult record_event(CUevent event, CUstream stream);
  CUresult record_event_with_flags(CUevent event, CUstream stream, unsigned flags);
  CUresult query_event(CUevent event);
  CUresult synchronize_event(CUevent event);
  CUresult elapsed_time(float* milliseconds, CUevent start, CUevent end);

  CUresult copy_to_device(CUdeviceptr target, const void* source, size_t bytes, CUstream stream);
  CUresult copy_to_host(void* target, CUdeviceptr source, size_t bytes, CUstream stream);
  CUresult copy_on_device(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream);
  /// Copies within the host, at once after the stream's earlier work, as CUDA documents.
  CUresult copy_on_host(void* target, const void* source, size_t bytes, CUstream stream);
  CUresult set_bytes(CUdeviceptr target, unsigned char value, size_t bytes, CUstream stream);
  /// Sets `count` words of 32 bits.
  CUresult set_words(CUdeviceptr target, unsigned value, size_t count, CUstream stream);

  /// Returns CUDA_ERROR_INVALID_HANDLE for a stream of another device than the current one.
  CUresult launch(CUstream stream, Kernel kernel);
  /// Later work of the stream waits for let_go().
  CUresult hold(CUstream stream);
  /// No copy after the next `but` copies begins until let_go(); running copies go on. REQUIRES: no
  /// copy is queued or about to begin.
  void hold_copies(int64_t but) {
    copies_held_until_ = lettings_go_ + 1;
    copies_let_through_ = but;
  }
  void let_go() {
    let_go_ns_ = now_ns();
    ++lettings_go_;
  }
  /// Whether all queued work waits for let_go(), some of it through an event.
  bool is_stuck() const;

  /// The number of works that are queued or running in one stream. REQUIRES: the stream exists.
  size_t unfinished(CUstream stream) const;
  /// The same in all streams, destroyed ones included.
  size_t unfinished() const;
  void wait_until_idle();
  /// Waits for what the streams of the current device were given, like cuCtxSynchronize.
  CUresult synchronize();
  /// Does the same, whatever the streams capture.
  CUresult wait_for_device() const;
  /// REQUIRES: the stream exists.
  StreamTimes times(CUstream stream) const;
  /// With works_first: the number of works that took the processor longer than their time.
  uint64_t late() const { return late_; }
  /// With works_first: the longest delay of a work's end.
  uint64_t lag_ns() const { return lag_ns_; }
  /// Restarts the counts of all streams.
  void reset_times();
  /// One line for each stream and event.
  std::string leaks() const TENCACHE_EXCLUDES(mutex_);

 private:
  using Clock = uint64_t (*)();
  using StreamPointer = std::shared_ptr<SimulatedStream>;
  // The memory that a work uses.
  struct Uses {
    std::span<const DeviceRange> mapped;      // in reservations
    std::span<const DeviceRange> registered;  // of the host; looked at when the work is done
    int device = kAnyDevice;                  // whose access to what is mapped counts
    int registered_for = kAnyDevice;          // the device that reaches the host
  };
  enum class HostEnd : uint8_t { kNone, kTarget, kSource };
  struct Copy {
    CopyEngine& engine;
    DeviceRange target;
    DeviceRange source;
    HostEnd host = HostEnd::kNone;  // the other end, or both, are addresses of devices
  };
  struct Event {
    int device = 0;
    bool has_timing = true;
    std::shared_ptr<const Marker> last;  // null before the first record
  };

  // The device whose streams the calling thread means, or the first one if it has no context.
  int current_device() const;
  // The stream of that handle, or null.
  StreamPointer find(CUstream stream) const TENCACHE_EXCLUDES(mutex_);
  std::vector<StreamPointer> all_streams() const TENCACHE_EXCLUDES(mutex_);
  // Does the work's queueing, or adds the work to the graph that the stream captures.
  CUresult queue(SimulatedStream& stream, const GraphWork& work);
  // Does the same for an action.
  CUresult queue(SimulatedStream& stream, SimulatedStream::Action action,
                 WorkKind kind = WorkKind::kOther);
  // Queues the program's work, behind that of the streams that its stream waits for.
  void push(SimulatedStream& stream, SimulatedStream::Action action,
            std::shared_ptr<Marker> marker = nullptr, WorkKind kind = WorkKind::kOther)
      TENCACHE_EXCLUDES(legacy_mutex_, mutex_);
  CUresult mark_event(CUevent event, SimulatedStream& stream) TENCACHE_EXCLUDES(mutex_);
  CUresult await_event(CUevent event, SimulatedStream& stream) TENCACHE_EXCLUDES(mutex_);
  bool is_event_of(int device, CUevent event) const TENCACHE_EXCLUDES(mutex_);
  // Gives the moment that an event stands for, or null if the event was never recorded. Returns
  // false when there is no event.
  bool find_moment(CUevent event, std::shared_ptr<const Marker>* moment) const
      TENCACHE_EXCLUDES(mutex_);
  // Whether the device's work may use the value at that address.
  bool is_value_place(const DeviceRange& range, int device) const;
  template <typename Value>
  CUresult push_value(CUstream stream, CUdeviceptr address, Value value, unsigned flags);
  template <typename Value>
  CUresult fill(CUdeviceptr target, Value value, size_t count, CUstream stream);
  // Returns once the stream has done all it was given.
  CUresult wait_for(SimulatedStream& stream) const;
  CUresult push_copy(const Copy& copy, CUstream stream);
  CUresult push_kernel(CUstream stream, Kernel kernel, WorkKind kind);
  // Lets the work take its time and does it, with its ranges declared to the memory throughout. The
  // clock measures the work's own time: a kernel may wait for something, while a copy only works,
  // however seldom its thread gets to run.
  uint64_t perform(SimulatedStream& stream, const Uses& uses, uint64_t begin_ns, uint64_t end_ns,
                   const std::function<void()>& work, Clock clock,
                   const std::function<void()>& explain = {});
  // Does the work at the beginning of its time (SimulatedDriverConfig::works_first).
  uint64_t perform_first(SimulatedStream& stream, uint64_t begin_ns, uint64_t end_ns,
                         const std::function<void()>& work);
  // Waits for that many calls of let_go().
  void wait_held(SimulatedStream& worker, uint64_t until) const;
  void note_lag(uint64_t lag_ns);
  void forget_finished() TENCACHE_EXCLUDES(mutex_);

  const SimulatedDevices& devices_;
  SimulatedMemory& memory_;
  const HostRegistrations& host_;
  StickyFailure& failure_;
  const bool reads_may_race_;
  const bool works_first_;
  const bool reuses_stream_handles_;
  CopyEngine to_device_;
  CopyEngine to_host_;
  CopyEngine on_device_;
  std::atomic<uint64_t> late_ = 0;
  std::atomic<uint64_t> lag_ns_ = 0;
  std::atomic<uint64_t> lettings_go_ = 0;
  std::atomic<uint64_t> let_go_ns_ = 0;  // the last one
  std::atomic<uint64_t> copies_held_until_ = 0;
  std::atomic<int64_t> copies_let_through_ = 0;

  const uint64_t queued_kernels_max_;
  SimulatedCaptures captures_;
  std::vector<StreamPointer> null_streams_;  // by device; constant

  Mutex legacy_mutex_;  // one push at a time, so that no two streams wait for each other
  mutable Mutex mutex_;
  std::map<CUstream, StreamPointer> streams_ TENCACHE_GUARDED_BY(mutex_);  // without NULL streams
  std::vector<StreamPointer> destroyed_ TENCACHE_GUARDED_BY(mutex_);  // they may have work left
  std::map<CUevent, Event> events_ TENCACHE_GUARDED_BY(mutex_);
  std::vector<CUstream> free_handles_ TENCACHE_GUARDED_BY(mutex_);  // the last one is reused first
  // The last name of a stream or event. No event's name is ever used again, and no stream's unless
  // the configuration says so. So the use of a destroyed one is found out.
  uint64_t last_name_ TENCACHE_GUARDED_BY(mutex_) = 0x1000;
};

}  // namespace tencache
