// SPDX-License-Identifier: Apache-2.0
//
// LaunchGate: what work on a GPU passes that no op has announced: kernels of extensions that
// register no op, of CuPy or Numba on a tensor's memory, copies by the driver's own functions. A
// preloaded library sees each launch before it is queued (guard/) and asks here.
//
// A launch whose memory the thread's open ops have announced costs a look at each address; of what
// no op has ever named, which does not leave, also a pin until it is queued. Any other is an op of
// its own: it pins what it uses, waits for what is cold, and is learned, so that a plan brings it
// in time. What it does to each tensor is not known, so it counts as a write.
//
// What a kernel was given may look like an address and be none, or be one of old. Then a tensor is
// kept, or brought, for nothing; that another thread frees it at this moment does no harm.
//
// Streams that no op has used have no number, and get none here, because whoever made one may
// destroy it; nor has a stream of another GPU than the thread's current one, or the per-thread
// default stream. What a launch there uses without an op is waited for on the host and stays on its
// GPU until it is freed.
//
// Threads: any. A launch that is an op takes the lock of Engines for its name.
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

  /// A launch by this thread that may use these is about to be queued in the stream. What is
  /// returned, unless it is 0, must be given to close() when it is, before the next one.
  uint32_t open(std::string_view name, void* stream, std::span<const Access> accesses);
  void close(uint32_t opened);
  /// A kernel was launched whose arguments nobody could read.
  void on_unreadable();

  /// Launches that used what no op had announced, and those that nobody could look into.
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
