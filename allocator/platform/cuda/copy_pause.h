// SPDX-License-Identifier: Apache-2.0
//
// CopyPause: stops copies to the host while the driver maps memory. The driver seems to write page
// tables with the engine that copies to the host, and the two take turns of a millisecond: on an
// H200 cuMemSetAccess() of one handle takes 0.5 to 1.1 ms while copies are queued, and that of four
// takes 4 ms. Where the copies pause, the calls take 0.2 and 0.3 ms
// (benchmarks/gpu/results/mappings.md). A copy is queued in pieces, and before each of them the
// stream waits, on the device, until no thread makes the copies pause. The waits alone cost 1 % of
// the link, and 2.5 % where it is busy in both directions.
//
// Calls like cudaFree wait for the device, and may keep other threads from mapping. If one of them
// waits for a copy, the copy for a mapping, and the mapping for that call, none of them ends. So
// CopyPause has a thread, tencache-pause, which lets the copies go on where they were held for too
// long.
//
// Invariant: the word in host memory, which the streams read, is -1 while copies are held, else 0.
//
// Threads: any. mutex_ guards the word and is never held across a call of the driver.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "platform/cuda/gpu.h"
#include "platform/cuda/zero_copy_memory.h"

namespace tencache {

class CopyPause {
 public:
  /// The size of a piece of a copy. A mapping waits for the rest of one piece, 300 us of a link of
  /// PCIe 5. With pieces of 8 MiB access takes 0.1 ms, but the waits before the pieces cost the
  /// link 1.5 and 4 %.
  static constexpr uint64_t kPieceBytes = 16ull << 20;
  /// Copies are held for once to twice this time at most. Mappings usually take far less.
  static constexpr std::chrono::milliseconds kPatience{20};

  /// Returns kUnavailable where the GPU's streams cannot wait for a value in host memory.
  static Result<std::unique_ptr<CopyPause>> create(const Gpu& gpu,
                                                   std::chrono::nanoseconds patience = kPatience);
  /// REQUIRES: no stream waits any more.
  ~CopyPause();
  CopyPause(const CopyPause&) = delete;
  CopyPause& operator=(const CopyPause&) = delete;

  /// Work that is queued in the stream from now on begins when no thread makes copies pause, or
  /// when they have paused for too long. Where the driver refuses, it begins at once, which is
  /// correct, too.
  void hold_back(CUstream stream) const;

  /// While it lives, copies pause.
  class Scope {
   public:
    /// `pause` may be null: then nothing pauses.
    explicit Scope(CopyPause* pause) : pause_(pause) {
      if (pause_ != nullptr) pause_->begin();
    }
    ~Scope() {
      if (pause_ != nullptr) pause_->end();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CopyPause* const pause_;
  };

 private:
  CopyPause(const Gpu& gpu, std::unique_ptr<ZeroCopyMemory> memory,
            std::chrono::nanoseconds patience)
      : gpu_(gpu), memory_(std::move(memory)), patience_(patience) {}
  Status start();

  std::atomic_ref<int64_t> word() const TENCACHE_REQUIRES(mutex_) {
    return std::atomic_ref<int64_t>(*reinterpret_cast<int64_t*>(memory_->host_address()));
  }
  void begin() TENCACHE_EXCLUDES(mutex_);
  void end() TENCACHE_EXCLUDES(mutex_);
  void work() TENCACHE_EXCLUDES(mutex_);
  void look() TENCACHE_REQUIRES(mutex_);

  const Gpu& gpu_;
  const std::unique_ptr<ZeroCopyMemory> memory_;  // the word
  const std::chrono::nanoseconds patience_;

  mutable Mutex mutex_;
  CondVar changed_;
  unsigned pausing_ TENCACHE_GUARDED_BY(mutex_) = 0;  // threads
  std::chrono::steady_clock::time_point held_since_ TENCACHE_GUARDED_BY(mutex_);
  int idle_looks_ TENCACHE_GUARDED_BY(mutex_) = 0;  // in a row, of the watcher
  bool is_stopping_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace tencache
