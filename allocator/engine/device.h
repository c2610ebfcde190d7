// SPDX-License-Identifier: Apache-2.0
//
// Device: what an engine runs on: the memory and the budget of one device, the tiers below it, and
// the code that moves bytes between them. Gate, evictor, prefetcher, learning and planning are the
// same over any device. There are two kinds, CpuDevice (engine/cpu_device.h) and CudaDevice
// (engine/cuda_device.h). Each adds members that only its own callers need.
//
// The device owns the budget and the counters, because its parts reserve and count from the first
// moment on. It outlives all other parts of its engine.
//
// Threads: create and destroy on one thread; call the rest from any.
#pragma once

#include <cstdint>
#include <optional>

#include "base/stats.h"
#include "base/status.h"
#include "engine/gate/op_timer.h"
#include "engine/move/mover.h"
#include "memory/budget.h"
#include "memory/heap.h"
#include "platform/stream_set.h"
#include "tier/disk_tier.h"
#include "tier/host_tier.h"

namespace tencache {

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Budget& budget() { return budget_; }
  Stats& stats() { return stats_; }
  virtual Heap& heap() = 0;
  /// Returns null where nothing ever goes cold.
  virtual Mover* mover() = 0;
  /// The tiers below, or null where there are none.
  virtual HostTier* host() { return nullptr; }
  virtual DiskTier* disk() = 0;

  /// Allocates memory that the stream may use at once. On a device without streams, anybody may.
  virtual Result<Allocation> allocate(uint64_t bytes, void* stream) = 0;
  virtual void free(void* address) = 0;

  /// Returns null where ops are done when they return, so that the host's clock tells how long they
  /// take.
  virtual OpTimer* op_timer() { return nullptr; }
  /// A second timer, for the device's waits.
  virtual OpTimer* wait_timer() { return nullptr; }

  /// The set of this one stream of the driver's, or none where there are no streams.
  virtual StreamSet set_of(void* /*stream*/) { return kNoStreams; }
  /// The set of a stream that an earlier call has named (set_of()), or none for any other stream.
  virtual StreamSet find_set_of(void* /*stream*/) { return kNoStreams; }
  /// Whether streams that the calling thread names belong to this device.
  virtual bool is_current() { return true; }
  /// Whether the stream is capturing a CUDA graph.
  virtual bool is_capturing(void* /*stream*/) { return false; }
  /// Sets how the calling thread treats captures (CUstreamCaptureMode), and returns how it treated
  /// them before, or nullopt where nothing was set.
  virtual std::optional<int> exchange_capture_mode(int /*mode*/) { return std::nullopt; }

  /// Whether the device still takes work. A failure is for good, and every later call fails because
  /// of it. kUnavailable is the exception: the device cannot be asked now.
  virtual Status status() { return Status::ok(); }
  /// Measures the speeds on which plans rely, where that takes a probe. Call once, with the engine
  /// in place, before the program uses the device.
  virtual Status measure() { return Status::ok(); }

  /// Call before fork(). REQUIRES: nothing moves until after_fork_in_parent(). On cuda there is
  /// nothing to do: the children of a fork have no GPU, do not see the host tier and map no slots.
  virtual void before_fork() {}
  virtual void after_fork_in_parent() {}

 protected:
  /// The attention mark begins at the full budget; the engine lowers it.
  explicit Device(uint64_t budget_bytes)
      : budget_(budget_bytes, budget_bytes, stats_.peak_device_bytes) {}

 private:
  Stats stats_;
  Budget budget_;
};

}  // namespace tencache
