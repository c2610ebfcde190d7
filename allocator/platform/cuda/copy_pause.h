// SPDX-License-Identifier: Apache-2.0
//
// CopyPause: copies to the host stop while the driver maps memory. A GPU writes its page tables
// with the engine that copies to the host, and the two take turns of a millisecond. So on an H200
// access to one handle takes 0.5 to 1.1 ms while copies are queued, and access to four takes 4 ms;
// where the copies pause it takes 0.2 and 0.3 ms (benchmarks/gpu/results/mappings.md). A copy is
// queued in pieces, and before each of them the stream waits, on the device, until no thread
// pauses. That costs 1 % of the link, 2.5 % where it is busy in both directions.
//
// A call of the driver that waits for the device (cudaFree does) may keep others from mapping. One
// that waits for a copy which waits for a mapping would never return. So a thread of its own,
// tencache-pause, ends a pause that nothing else ends in time.
//
// Invariant: the word in host memory, which the streams read, is minus the number of threads that
// pause; plus kOpen from when a pause is overdue until nobody pauses.
//
// Threads: any. mutex_ guards only the thread's sleep.
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
#include "platform/host_memory.h"

namespace tencache {

class CopyPause {
 public:
  /// A mapping waits for the rest of one of these, 300 us of a link of PCIe 5. With 8 MiB access
  /// takes 0.1 ms, but waiting before each piece costs the link 1.5 and 4 %.
  static constexpr uint64_t kPieceBytes = 16ull << 20;
  /// After this to twice this long a pause is overdue. A mapping takes far less.
  static constexpr std::chrono::milliseconds kPatience{20};

  /// kUnavailable where the GPU's streams cannot wait for a value in host memory.
  static Result<std::unique_ptr<CopyPause>> create(const Gpu& gpu,
                                                   std::chrono::nanoseconds patience = kPatience);
  /// REQUIRES: no stream waits any more.
  ~CopyPause();
  CopyPause(const CopyPause&) = delete;
  CopyPause& operator=(const CopyPause&) = delete;

  /// What is queued in the stream from now on begins when no thread pauses. Where the driver
  /// refuses, it begins at once, which is as right.
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
  static constexpr int64_t kOpen = int64_t{1} << 32;

  CopyPause(const Gpu& gpu, HostMemory memory, std::chrono::nanoseconds patience)
      : gpu_(gpu), memory_(std::move(memory)), patience_(patience) {}
  Status pin();

  std::atomic_ref<int64_t> word() const {
    return std::atomic_ref<int64_t>(*reinterpret_cast<int64_t*>(memory_.data()));
  }
  void begin() {
    word().fetch_sub(1);
    if (!is_watched_.load()) [[unlikely]] {
      start_to_watch();
    }
  }
  void end() {
    ended_.fetch_add(1);
    word().fetch_add(1);
  }
  void start_to_watch() TENCACHE_EXCLUDES(mutex_);
  void work() TENCACHE_EXCLUDES(mutex_);
  void watch() TENCACHE_REQUIRES(mutex_);
  void end_overdue() TENCACHE_REQUIRES(mutex_);

  const Gpu& gpu_;
  const HostMemory memory_;
  const std::chrono::nanoseconds patience_;
  CUdeviceptr device_word_ = 0;
  std::atomic<uint64_t> ended_{0};  // pauses
  std::atomic<bool> is_watched_{false};

  Mutex mutex_;
  CondVar changed_;
  bool is_stopping_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace tencache
