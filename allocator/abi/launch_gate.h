// SPDX-License-Identifier: Apache-2.0
//
// LaunchGate: the gate for GPU work that no op has announced: kernels of extensions that register
// no op, of CuPy or Numba on a tensor's memory, and copies by the driver's own functions. A
// preloaded library (guard/) sees each launch before it is queued and asks here.
//
// If the thread's open ops have announced all memory of a launch, the launch costs a look at each
// address. If an extent is still arriving, and the launch is in another stream than the ops, its
// stream is made to wait. An extent that no op has ever named does not leave; such an extent also
// costs a pin until the launch is queued. Any other launch counts as an op: it pins what it uses,
// waits for what is cold, and is learned, so that a plan brings its tensors in time. We do not know
// what it does to each tensor, so it counts as a write.
//
// A kernel argument may look like an address without being one, or be stale. Then a tensor is
// pinned or fetched for nothing. It does no harm if another thread frees the tensor at this moment.
//
// A stream that no op has used gets a number here only when it uses what an open op has announced:
// numbers are few, and a library may make a stream for a moment. A stream of a GPU that is not the
// thread's current one never gets a number here, nor does the per-thread default stream. If a
// launch in a stream without a number uses an extent that no open op has announced, we wait for the
// extent on the host, and it stays on its GPU until it is freed.
//
// Threads: any. A launch that counts as an op takes the lock of Engines for its name.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "abi/engines.h"
#include "engine/gate/gate.h"

namespace tencache {

class LaunchGate {
 public:
  explicit LaunchGate(Engines& gpus) : engines_(gpus) {}
  LaunchGate(const LaunchGate&) = delete;
  LaunchGate& operator=(const LaunchGate&) = delete;

  /// Call before this thread queues a launch that may use these extents in the stream. If the
  /// result is not 0, give it to close() once the launch is queued, and before the next one.
  uint32_t open(std::string_view name, void* stream, std::span<const Access> accesses);
  void close(uint32_t opened);
  /// Call for each launch of a kernel whose arguments cannot be read.
  void on_unreadable();

  /// How many launches counted as ops, and how many had arguments that could not be read.
  uint64_t unannounced() const { return unannounced_.load(std::memory_order_relaxed); }
  uint64_t unreadable() const { return unreadable_.load(std::memory_order_relaxed); }

 private:
  struct Stream;
  bool open_on(Engine& engine, std::string_view name, void* handle,
               std::span<const Access> accesses);

  Engines& engines_;
  std::atomic<uint64_t> unannounced_{0};
  std::atomic<uint64_t> unreadable_{0};
};

}  // namespace tencache
