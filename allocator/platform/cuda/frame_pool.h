// SPDX-License-Identifier: Apache-2.0
//
// FramePool: the frames of one GPU, i.e. device memory that can be mapped under an extent. A frame
// is one handle of exactly the requested size (a multiple of the GPU's granularity): creating and
// mapping cost per handle, not per byte, and a handle cannot be mapped in part. Creating is the
// expensive call, so a frame that is given back waits for a request of the same size. Where room is
// short, the frames that waited longest go back to the driver first.
//
// Invariant: the handles that exist, in use or free, never hold more than the limit, except what
// take_reserved() needs beyond it; no frame is free then. A frame is destroyed before another is
// created in its place, because the driver needs the memory first.
//
// Where the driver must not be called (platform/cuda/driver_use.h), take() returns an error, the
// other calls do nothing, and frames in use stay so.
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
  bool is_small = false;  // whether it serves (if free: served last) small requests
};

/// A count of handles from the driver.
struct FrameUse {
  UseCount bytes;
  UseCount frames;
};

/// Memory that the pool has from the driver, free frames included. A frame that changes between
/// small and large requests leaves one kind and joins the other.
struct FrameUses {
  FrameUse all;  // its peak is not the sum of the others' peaks
  FrameUse small;
  FrameUse large;
};

class FramePool {
 public:
  FramePool(const Gpu& gpu, uint64_t limit_bytes) : gpu_(gpu), limit_bytes_(limit_bytes) {}
  /// REQUIRES: every frame was given back, unless the driver may no longer be called.
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  /// A frame with undefined contents. REQUIRES: `bytes` is a multiple of the granularity and not 0.
  /// kOutOfMemory when the frames in use leave no room below the limit, or when the GPU has no
  /// memory left because others use it; the message says which. Waits while another thread gives
  /// frames back to the driver.
  Result<Frame> take(uint64_t bytes) TENCACHE_EXCLUDES(mutex_) { return take(bytes, false, false); }
  /// The same for callers who count the memory in use themselves. Only free frames are destroyed to
  /// stay below the limit; where that is not enough, the limit is exceeded.
  Result<Frame> take_reserved(uint64_t bytes, bool is_small = false) TENCACHE_EXCLUDES(mutex_) {
    return take(bytes, is_small, true);
  }
  /// The frame cannot be unmapped, because the context is broken, and is lost with the context.
  void write_off(const Frame& frame) TENCACHE_EXCLUDES(mutex_);
  /// REQUIRES: the frame is mapped nowhere, and no work of the device uses it any more.
  void give_back(const Frame& frame) TENCACHE_EXCLUDES(mutex_);

  /// Destroys free frames, oldest first, until `bytes` went back to the driver or none is left;
  /// returns the bytes destroyed.
  uint64_t trim(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// Changes the limit. Free frames beyond it are destroyed; frames in use stay.
  void set_limit(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// Bytes of all handles, and of the free ones.
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
  // Includes frames that are being created and frames that are being destroyed.
  uint64_t bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;
  uint64_t leaving_bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;
  uint64_t destroyed_count_ TENCACHE_GUARDED_BY(mutex_) = 0;
  FrameUses uses_ TENCACHE_GUARDED_BY(mutex_);
  CondVar has_left_;
};

}  // namespace tencache
