// SPDX-License-Identifier: Apache-2.0
//
// SegmentTrackers: those who want to hear when PyTorch's allocator takes memory from the driver and
// gives it back, as NCCL's process groups do, which register such memory with NCCL. They hear of
// the segments of private pools alone, whose memory stays where it is until it is gone. Of the
// common memory they hear nothing, because a large tensor there may leave the GPU and come back
// elsewhere.
//
// The thread that makes or gives back memory of a private pool says so by a Scope, as the core
// knows nothing of PyTorch's ids. Trackers stay for ever, as with PyTorch's own allocator.
//
// Threads: any. Trackers are called on the thread that caused the event, without a lock of ours;
// the core holds none for segments either.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tencache::shim {

class SegmentTrackers {
 public:
  using Tracker = c10::CachingDeviceAllocator::AllocatorTraceTracker;

  /// What this thread asks of the core meanwhile, it does for that pool; {0, 0}: for none.
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
  /// TENCACHE_SEGMENT_MADE and so on; costs one relaxed load while nobody tracks.
  void note_core_event(c10::DeviceIndex device, int event, uintptr_t address, uint64_t bytes);

 private:
  std::atomic<bool> is_empty_{true};
  std::mutex mutex_;
  std::vector<Tracker> trackers_;  // guarded by mutex_
};

}  // namespace tencache::shim
