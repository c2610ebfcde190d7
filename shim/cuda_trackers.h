// SPDX-License-Identifier: Apache-2.0
//
// SegmentTrackers: callbacks that hear when PyTorch's allocator takes memory from the driver and
// gives it back. NCCL's process groups use them to register such memory with NCCL. They hear of
// segments of private pools alone, whose memory stays where it is until it is gone. They hear
// nothing of the common memory, because a large tensor there may leave the GPU and come back
// elsewhere.
//
// The core knows nothing of PyTorch's ids. So a thread that makes memory of a private pool names
// the pool by a Scope, and the segment's address tells its pool when it goes. Trackers stay for
// ever, as with PyTorch's own allocator. One that comes late hears of the end of older segments,
// too, because it finds those in a snapshot.
//
// Threads: any. Trackers are called on the thread that caused the event, without a lock of ours;
// the core holds none for segments either. What a tracker throws does not pass through the core:
// the thread takes it afterwards.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace tencache::shim {

class SegmentTrackers {
 public:
  using Tracker = c10::CachingDeviceAllocator::AllocatorTraceTracker;

  /// While a Scope lives, its thread asks the core for memory of `pool`; {0, 0} means no pool.
  class Scope {
   public:
    explicit Scope(const c10::MempoolId_t& pool);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const c10::MempoolId_t before_;
  };

  void attach(Tracker tracker);
  /// Tells the trackers of an event in a segment of a private pool. `event` is
  /// TENCACHE_SEGMENT_MADE and so on. Costs one relaxed load while no pool has memory.
  void note_core_event(c10::DeviceIndex device, int event, uintptr_t address, uint64_t bytes);
  /// What a tracker threw on this thread since the last call; null if none did.
  static std::exception_ptr take_failure();

 private:
  // Returns the pool of the segment that was made or goes, or nullopt if that is common memory.
  std::optional<c10::MempoolId_t> note_pool(int event, uintptr_t address);

  std::atomic<size_t> segment_count_{0};  // of pool_of_
  std::mutex mutex_;
  // mutex_ guards both.
  std::vector<Tracker> trackers_;
  std::unordered_map<uintptr_t, c10::MempoolId_t> pool_of_;  // of each segment that a pool has
};

}  // namespace tencache::shim
