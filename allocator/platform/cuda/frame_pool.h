// SPDX-License-Identifier: Apache-2.0
//
// FramePool: the frames of one GPU, i.e. device memory that can be mapped under an extent. A frame
// is one handle of exactly the size that was asked (a multiple of the GPU's granularity), because
// what creating and mapping cost is per handle and not per byte, and because a handle cannot be
// mapped in part. Creating is the dear call, so frames that are given back wait for a request of
// the same size; where room is short, the ones that waited longest go back to the driver first.
//
// Invariant: the handles that exist, in use or free, never hold more than the limit, but for what
// take_reserved() needs beyond it; none is free then. A frame is destroyed before another is
// created in its place: the driver does not take that on trust.
//
// Where the driver must not be called (platform/cuda/driver_use.h), take() says so, the rest does
// nothing, and what is in use stays so.
//
// Threads: any. mutex_ is held for bookkeeping only, never across a call of the driver.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <list>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/use_count.h"
#include "platform/cuda/gpu.h"

namespace tencache {

struct Frame {
  CUmemGenericAllocationHandle handle = 0;
  uint64_t bytes = 0;
  bool is_small = false;  // serves, or if it is free served last, small requests
};

/// Handles from the driver.
struct FrameUse {
  UseCount bytes;
  UseCount frames;
};

/// What the pool has from the driver, free frames included. One that changes from small requests to
/// large ones or back goes from one kind and comes to the other.
struct FrameUses {
  FrameUse all;  // its peak is not the sum of the others' peaks
  FrameUse small;
  FrameUse large;
};

class FramePool {
 public:
  FramePool(const Gpu& gpu, uint64_t limit_bytes) : gpu_(gpu), limit_bytes_(limit_bytes) {}
  /// REQUIRES: every frame was given back, as long as the driver may be called.
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  /// A frame whose contents are anything. REQUIRES: `bytes` is a multiple of the granularity and
  /// not 0. kOutOfMemory when the frames in use leave no room below the limit, or when the GPU has
  /// none left because others use it; the message says which. Waits while another thread gives
  /// frames back to the driver.
  Result<Frame> take(uint64_t bytes) TENCACHE_EXCLUDES(mutex_) { return take(bytes, false, false); }
  /// The same for callers who keep books of what is in use themselves: only free frames go to stay
  /// below the limit, and where that is not enough it is exceeded.
  Result<Frame> take_reserved(uint64_t bytes, bool is_small = false) TENCACHE_EXCLUDES(mutex_) {
    return take(bytes, is_small, true);
  }
  /// The frame cannot be unmapped, because the context is broken, and is lost with it.
  void write_off(const Frame& frame) TENCACHE_EXCLUDES(mutex_);
  /// The frame is mapped nowhere, and no work of the device uses it any more.
  void give_back(const Frame& frame) TENCACHE_EXCLUDES(mutex_);

  /// Destroys free frames, those first that waited longest, until `bytes` went back to the driver
  /// or none is left; returns what went.
  uint64_t trim(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// The limit from now on. Free frames go where there are too many; those in use stay.
  void set_limit(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// Of all handles, and of those that wait.
  uint64_t bytes() const TENCACHE_EXCLUDES(mutex_);
  uint64_t free_bytes() const TENCACHE_EXCLUDES(mutex_);
  FrameUses uses() const TENCACHE_EXCLUDES(mutex_);
  void reset_peaks() TENCACHE_EXCLUDES(mutex_);
  void reset_totals() TENCACHE_EXCLUDES(mutex_);

 private:
  using ByAge = std::list<Frame>;  // oldest first

  Result<Frame> take(uint64_t bytes, bool is_small, bool is_reserved) TENCACHE_EXCLUDES(mutex_);
  Frame take_free(ByAge::iterator found, bool is_small) TENCACHE_REQUIRES(mutex_);
  FrameUse& uses_of(const Frame& frame) TENCACHE_REQUIRES(mutex_) {
    return frame.is_small ? uses_.small : uses_.large;
  }
  std::vector<Frame> pick_oldest(uint64_t bytes) TENCACHE_REQUIRES(mutex_);
  uint64_t destroy(const std::vector<Frame>& frames) TENCACHE_EXCLUDES(mutex_);
  Result<Frame> create(uint64_t bytes, bool is_small) TENCACHE_EXCLUDES(mutex_);
  uint64_t destroyed_count() const TENCACHE_EXCLUDES(mutex_);
  bool has_destroyed_since(uint64_t count) TENCACHE_EXCLUDES(mutex_);
  uint64_t excess() const TENCACHE_REQUIRES(mutex_);
  Status no_room(uint64_t bytes) const TENCACHE_REQUIRES(mutex_);

  const Gpu& gpu_;

  mutable Mutex mutex_;
  uint64_t limit_bytes_ TENCACHE_GUARDED_BY(mutex_);
  ByAge free_ TENCACHE_GUARDED_BY(mutex_);
  std::multimap<uint64_t, ByAge::iterator> free_by_bytes_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t free_bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;
  // Those that are being created are counted, and those that are being destroyed still.
  uint64_t bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;
  uint64_t leaving_bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;
  uint64_t destroyed_count_ TENCACHE_GUARDED_BY(mutex_) = 0;
  FrameUses uses_ TENCACHE_GUARDED_BY(mutex_);
  CondVar has_left_;
};

}  // namespace tencache
