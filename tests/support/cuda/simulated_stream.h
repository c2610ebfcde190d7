// SPDX-License-Identifier: Apache-2.0
//
// SimulatedStream: one stream of the simulated driver: a thread that does its work in the order in
// which it was pushed. Marker: a moment in a stream, which an event records and the host waits for.
// CopyEngine: one direction of the link, shared by all streams.
//
// Timed work takes its time on the device's clock: a stream's next work begins when its last one
// ended, even if its thread woke late. So lateness does not add up, and the times of markers follow
// exactly from the rates; no time is ahead of the real one. Unless the config says works_first,
// bytes move, and kernels run, at the end of their time: the worst case for a program that reads a
// target too early or reuses a source too soon.
//
// A stream accounts for its time on that clock, kernel by kernel. Between two kernels it was
// stalled from the moment the second one was queued, and starved before.
//
// When the context has failed or the stream is stopped, queued work is dropped except its markers,
// so that nobody waits for ever. Work whose time is running is dropped too.
// Threads: any for push(), markers and engines; actions may call the methods that say so.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "support/cuda/simulated_driver_config.h"

namespace tencache {

class Marker {
 public:
  void complete(uint64_t time_ns) TENCACHE_EXCLUDES(mutex_);
  bool is_complete() const TENCACHE_EXCLUDES(mutex_);
  /// Returns the time of the moment, once it has come.
  uint64_t wait() const TENCACHE_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  mutable CondVar completed_;
  std::optional<uint64_t> time_ns_ TENCACHE_GUARDED_BY(mutex_);
};

class CopyEngine {
 public:
  CopyEngine(uint64_t bytes_per_s, uint64_t latency_ns)
      : bytes_per_s_(bytes_per_s), latency_ns_(latency_ns) {}

  /// Takes the engine for one copy that could begin at `begin_ns`; returns its end.
  uint64_t take(uint64_t begin_ns, uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

 private:
  const uint64_t bytes_per_s_;
  const uint64_t latency_ns_;
  Mutex mutex_;
  uint64_t free_at_ns_ TENCACHE_GUARDED_BY(mutex_) = 0;
};

enum class WorkKind : uint8_t { kKernel, kOther };

/// Whether a stream and the legacy one, which is the NULL stream, wait for each other.
enum class StreamKind : uint8_t { kLegacy, kBlocking, kNonBlocking };

/// The state of a stream: idle, working, or waiting.
enum class Standing : uint8_t { kIdle, kGoesOn, kWaitsForEvent, kIsHeld };

/// How a stream spent its time from the first kernel to the last one, on the device's clock.
struct StreamTimes {
  uint64_t kernels = 0;
  uint64_t busy_ns = 0;     // with kernels
  uint64_t stalled_ns = 0;  // a kernel was queued and waited for earlier work
  uint64_t starved_ns = 0;  // no kernel was queued
};

class SimulatedStream {
 public:
  /// A function that does work, which the device begins at `begin_ns`. It returns the work's end on
  /// the device.
  using Action = std::function<uint64_t(SimulatedStream& stream, uint64_t begin_ns)>;

  /// No more kernels than `queued_kernels_max` are queued or running.
  SimulatedStream(const StickyFailure& failure, int device, StreamKind kind,
                  size_t queued_kernels_max);
  /// Stops, and waits for running work.
  ~SimulatedStream();
  SimulatedStream(const SimulatedStream&) = delete;
  SimulatedStream& operator=(const SimulatedStream&) = delete;

  int device() const { return device_; }
  StreamKind kind() const { return kind_; }

  /// Waits until one more kernel may be queued, as on a real GPU. Call before its push().
  void take_kernel_room() TENCACHE_EXCLUDES(mutex_);
  /// Queues the action and waits for nothing. The marker is complete once the action and everything
  /// before it have ended. The action may be empty.
  void push(Action action, std::shared_ptr<Marker> marker = nullptr,
            WorkKind kind = WorkKind::kOther) TENCACHE_EXCLUDES(mutex_);
  /// The number of works that are queued or running.
  size_t unfinished() const TENCACHE_EXCLUDES(mutex_);
  void wait_until_idle() TENCACHE_EXCLUDES(mutex_);
  /// The state after this many calls of let_go().
  Standing standing(uint64_t lettings_go) const TENCACHE_EXCLUDES(mutex_);
  StreamTimes times() const TENCACHE_EXCLUDES(mutex_);
  /// Starts to count anew at the next kernel.
  void reset_times() TENCACHE_EXCLUDES(mutex_);
  /// Drops queued work and cuts short the time of running work.
  void stop() TENCACHE_EXCLUDES(mutex_);

  /// For actions: lets time pass until then. Returns false when the rest of the action is to be
  /// dropped.
  bool pause_until(uint64_t time_ns) TENCACHE_EXCLUDES(mutex_);
  /// For actions: waits for the moment and returns its time.
  uint64_t wait_for(const std::shared_ptr<const Marker>& moment) TENCACHE_EXCLUDES(mutex_);
  /// For actions: notes that the stream is held until this many calls of let_go().
  void note_held(uint64_t until) TENCACHE_EXCLUDES(mutex_);

  /// Whether this thread does the work of a stream and so must not call the driver.
  static bool is_on_stream();

 private:
  struct Work {
    Action action;
    std::shared_ptr<Marker> marker;
    WorkKind kind = WorkKind::kOther;
    uint64_t pushed_ns = 0;
  };

  void run() TENCACHE_EXCLUDES(mutex_);
  void count_kernel(uint64_t pushed_ns, uint64_t begin_ns, uint64_t end_ns)
      TENCACHE_REQUIRES(mutex_);
  std::optional<Work> next_work() TENCACHE_EXCLUDES(mutex_);
  bool is_dropping() const TENCACHE_REQUIRES(mutex_) { return is_stopped_ || failure_.is_set(); }

  const StickyFailure& failure_;
  const int device_;
  const StreamKind kind_;
  const size_t queued_kernels_max_;
  mutable Mutex mutex_;
  CondVar changed_;  // work came, or the stream is stopped
  CondVar idle_;
  CondVar has_room_;
  std::deque<Work> queue_ TENCACHE_GUARDED_BY(mutex_);
  size_t unfinished_ TENCACHE_GUARDED_BY(mutex_) = 0;
  size_t unfinished_kernels_ TENCACHE_GUARDED_BY(mutex_) = 0;
  bool is_stopped_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const Marker> awaited_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t held_until_ TENCACHE_GUARDED_BY(mutex_) = 0;
  StreamTimes times_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t kernel_ended_ns_ TENCACHE_GUARDED_BY(mutex_) = 0;  // 0 before the first counted one
  uint64_t time_ns_ = 0;                                      // of the device; the thread's own
  std::thread thread_;  // last, so that it finds the other members made
};

}  // namespace tencache
