// SPDX-License-Identifier: Apache-2.0
//
// StreamTable: the streams and events of the simulated driver and the work that is put into them:
// copies, kernels, host functions, waits and writes of values. The methods of the driver have its
// parameters.
//
//   - Each device has a NULL stream of its own: that of the calling thread's current device is
//     meant. It is an ordinary stream: it waits for no other and none for it.
//   - An event stands for the last moment that was recorded; recording it again, or destroying it,
//     changes nothing for who waits already.
//   - A copy checks its device range when it is called (CUDA_ERROR_INVALID_VALUE) and when it runs
//     (the context fails); kernels only when they run.
//   - A copy from or to pageable memory, or one that goes to its end before the call returns.
//   - A stream that is said to capture a graph takes no events: the real one would take them for
//     its graph. Everything else it does as before.
//   - A stream that is destroyed finishes its work. The driver's end drops all work.
//
// Any thread but those of streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "support/cuda/host_registrations.h"
#include "support/cuda/simulated_devices.h"
#include "support/cuda/simulated_driver_config.h"
#include "support/cuda/simulated_memory.h"
#include "support/cuda/simulated_stream.h"

namespace tencache {

struct Kernel {
  std::vector<DeviceRange> touches;
  std::function<void()> run;
  uint64_t duration_ns = 0;
  std::function<void()> explain = {};  // called when a range is not accessible, before the failure
};

class StreamTable {
 public:
  StreamTable(const SimulatedDriverConfig& config, const SimulatedDevices& devices,
              SimulatedMemory& memory, const HostRegistrations& host, StickyFailure& failure);
  ~StreamTable();
  StreamTable(const StreamTable&) = delete;
  StreamTable& operator=(const StreamTable&) = delete;

  CUresult create_stream(CUstream* stream, unsigned flags, int priority);
  CUresult destroy_stream(CUstream stream);
  CUresult query_stream(CUstream stream);
  CUresult synchronize_stream(CUstream stream);
  CUresult wait_event(CUstream stream, CUevent event, unsigned flags);
  CUresult is_capturing(CUstream stream, CUstreamCaptureStatus* status);
  /// REQUIRES: the stream exists.
  void set_capturing(CUstream stream, bool is_capturing) TENCACHE_EXCLUDES(mutex_);
  /// EQ and GEQ.
  CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags);
  CUresult write_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags);
  CUresult write_value32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
  CUresult launch_host_function(CUstream stream, CUhostFn function, void* data);

  CUresult create_event(CUevent* event, unsigned flags);
  CUresult destroy_event(CUevent event);
  CUresult record_event(CUevent event, CUstream stream);
  CUresult query_event(CUevent event);
  CUresult synchronize_event(CUevent event);
  CUresult elapsed_time(float* milliseconds, CUevent start, CUevent end);

  CUresult copy_to_device(CUdeviceptr target, const void* source, size_t bytes, CUstream stream);
  CUresult copy_to_host(void* target, CUdeviceptr source, size_t bytes, CUstream stream);
  CUresult copy_on_device(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream);
  CUresult set_bytes(CUdeviceptr target, unsigned char value, size_t bytes, CUstream stream);
  /// `count` words of 32 bits.
  CUresult set_words(CUdeviceptr target, unsigned value, size_t count, CUstream stream);

  CUresult launch(CUstream stream, Kernel kernel) {
    return push_kernel(stream, std::move(kernel), WorkKind::kKernel);
  }
  /// What the stream is given from now on waits for let_go().
  CUresult hold(CUstream stream);
  /// But for so many, no copy begins until let_go(); those that have begun go on. REQUIRES: none
  /// is queued or about to begin.
  void hold_copies(int64_t but) {
    copies_held_until_ = lettings_go_ + 1;
    copies_let_through_ = but;
  }
  void let_go() {
    let_go_ns_ = now_ns();
    ++lettings_go_;
  }
  /// Whether all that is queued waits for let_go(), and some of it by way of an event.
  bool is_stuck() const;

  /// Works that are queued or running in one stream. REQUIRES: the stream exists.
  size_t unfinished(CUstream stream) const;
  /// The same in all, those that were destroyed included.
  size_t unfinished() const;
  void wait_until_idle();
  /// Waits for the streams of the current device, as cuCtxSynchronize.
  CUresult synchronize();
  /// REQUIRES: the stream exists.
  StreamTimes times(CUstream stream) const;
  /// Where works come first: those that kept the processor longer than the time they were given.
  uint64_t late() const { return late_; }
  /// The longest time, there, that the end of a work came after it was due.
  uint64_t lag_ns() const { return lag_ns_; }
  /// All streams count anew.
  void reset_times();
  /// One line for each stream and event.
  std::string leaks() const TENCACHE_EXCLUDES(mutex_);

 private:
  using Clock = uint64_t (*)();
  using StreamPointer = std::shared_ptr<SimulatedStream>;
  struct Event {
    bool has_timing = true;
    std::shared_ptr<const Marker> last;  // null before the first record
  };

  // The device whose streams the calling thread means: the first one, where it has no context.
  int current_device() const;
  // Null when there is none of that name.
  StreamPointer find(CUstream stream) const TENCACHE_EXCLUDES(mutex_);
  std::vector<StreamPointer> all_streams() const TENCACHE_EXCLUDES(mutex_);
  bool captures(CUstream stream) const TENCACHE_EXCLUDES(mutex_);
  // The moment an event stands for, null when it was never recorded; false when there is no event.
  bool find_moment(CUevent event, std::shared_ptr<const Marker>* moment) const
      TENCACHE_EXCLUDES(mutex_);
  // Whether the stream's work may use memory at that address for a value.
  bool is_value_place(const DeviceRange& range) const;
  template <typename Value>
  CUresult push_value(CUstream stream, CUdeviceptr address, Value value, unsigned flags);
  template <typename Value>
  CUresult fill(CUdeviceptr target, Value value, size_t count, CUstream stream);
  HostMemoryKind host_kind(const void* memory, size_t bytes, bool is_written) const;
  CUresult push_copy(CopyEngine& engine, std::vector<DeviceRange> touches, void* target,
                     const void* source, size_t bytes, CUstream stream, bool is_synchronous);
  CUresult push_kernel(CUstream stream, Kernel kernel, WorkKind kind);
  // Lets the work take its time and does it, all of it while it is declared to the memory. The
  // clock tells how long the work takes by itself: a kernel may wait for something, while a copy
  // only works, however seldom its thread is let run.
  uint64_t perform(SimulatedStream& stream, std::span<const DeviceRange> touches, uint64_t begin_ns,
                   uint64_t end_ns, const std::function<void()>& work, Clock clock,
                   const std::function<void()>& explain = {});
  // The same at the beginning of its time (SimulatedDriverConfig::works_first).
  uint64_t perform_first(SimulatedStream& stream, uint64_t begin_ns, uint64_t end_ns,
                         const std::function<void()>& work);
  // Waits for that many lettings go.
  void wait_held(SimulatedStream& worker, uint64_t until) const;
  void note_lag(uint64_t lag_ns);
  void forget_finished() TENCACHE_EXCLUDES(mutex_);

  const SimulatedDevices& devices_;
  SimulatedMemory& memory_;
  const HostRegistrations& host_;
  StickyFailure& failure_;
  const bool reads_may_race_;
  const bool works_first_;
  CopyEngine to_device_;
  CopyEngine to_host_;
  CopyEngine on_device_;
  std::atomic<uint64_t> late_ = 0;
  std::atomic<uint64_t> lag_ns_ = 0;
  std::atomic<uint64_t> lettings_go_ = 0;
  std::atomic<uint64_t> let_go_ns_ = 0;  // the last one
  std::atomic<uint64_t> copies_held_until_ = 0;
  std::atomic<int64_t> copies_let_through_ = 0;

  std::vector<StreamPointer> null_streams_;  // by device; constant

  mutable Mutex mutex_;
  std::map<CUstream, StreamPointer> streams_ TENCACHE_GUARDED_BY(mutex_);  // without those
  std::vector<StreamPointer> destroyed_ TENCACHE_GUARDED_BY(mutex_);  // they may have work left
  std::set<CUstream> capturing_ TENCACHE_GUARDED_BY(mutex_);
  std::map<CUevent, Event> events_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t last_name_ TENCACHE_GUARDED_BY(mutex_) = 0x1000;  // of a stream or event
};

}  // namespace tencache
