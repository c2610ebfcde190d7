// SPDX-License-Identifier: Apache-2.0
//
// SegmentTrackers: callbacks that hear when PyTorch's allocator takes memory from the driver and
// gives it back. NCCL's process groups use them to register such memory with NCCL. They hear of
// segments of private pools alone, whose memory stays where it is until it is gone. They hear
// nothing of the common memory, because a large tensor there may leave the GPU and come back
// elsewhere.
//
// The core knows nothing of PyTorch's ids. So a thread that makes or gives back memory of a private
// pool names the pool by a Scope. Trackers stay for ever, as with PyTorch's own allocator.
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

  /// While it lives, this thread asks the core for that pool's memory; {0, 0} is none.
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
  /// `event` is TENCACHE_SEGMENT_MADE and so on; costs one relaxed load while nobody tracks.
  void note_core_event(c10::DeviceIndex device, int event, uintptr_t address, uint64_t bytes);

 private:
  std::atomic<bool> is_empty_{true};
  std::mutex mutex_;
  std::vector<Tracker> trackers_;  // guarded by mutex_
};

}  // namespace tencache::shim
