// SPDX-License-Identifier: Apache-2.0
//
// Device: what an engine stands on, i.e. the memory of one device, the tiers below it, and how
// bytes move between them. Gate, evictor, prefetcher, learning and planning are the same over any
// backend.
#pragma once

#include "engine/gate/op_timer.h"
#include "engine/move/mover.h"
#include "memory/heap.h"
#include "platform/stream_set.h"

namespace tencache {

class Device {
 public:
  virtual ~Device() = default;

  virtual Heap& heap() = 0;
  /// Null where nothing ever goes cold.
  virtual Mover* mover() = 0;
  /// Null where ops are done when they return, so that the host's clock tells how long they take.
  virtual OpTimer* op_timer() { return nullptr; }
  /// Another one, for the device's waits.
  virtual OpTimer* wait_timer() { return nullptr; }

  /// The set of this one stream of the driver's; none where there are no streams.
  virtual StreamSet set_of(void* /*stream*/) { return kNoStreams; }
  /// The same of a stream that is known: an op has used it. Else none.
  virtual StreamSet find_set_of(void* /*stream*/) { return kNoStreams; }
  /// Whether streams that the calling thread names belong to this device.
  virtual bool is_current() { return true; }
  /// Whether the stream is capturing a CUDA graph.
  virtual bool is_capturing(void* /*stream*/) { return false; }

  /// Whether the device still takes work; a failure is for good, and what fails later fails by it.
  /// kUnavailable where it cannot be asked now.
  virtual Status device_status() { return Status::ok(); }

  /// A fork is about to be done; no migration is under way until the parent is told that it was.
  virtual void before_fork() = 0;
  virtual void after_fork_in_parent() = 0;
};

}  // namespace tencache
