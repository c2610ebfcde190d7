// SPDX-License-Identifier: Apache-2.0
//
// FramePool: the frames of one GPU, i.e. device memory that can be mapped under an extent. A frame
// is a short list of handles from the driver, mapped one behind another. Creating and mapping cost
// per handle, not per byte, and a handle cannot be mapped in part. So handles have few sizes: the
// granularity times a power of two, up to kHandleBytesMax. A frame of any size is built from few
// handles, the largest first, and a free handle serves frames of many sizes. Creating is the
// expensive call, so a frame that is given back leaves its handles here for others.
//
// Free handles may hold enough bytes and still not add up to a frame, because those that are left
// are too large. Then smaller ones are created as long as that is allowed, otherwise in the place
// of a large one. So the handles become as small as the program's sizes need, and no smaller.
// Random sizes with random lifetimes end at some four handles for each frame, and at less than one
// new handle in a hundred requests.
//
// Invariant: the handles that exist, in use or free, never hold more than the limit, except what
// take_reserved() needs beyond it, and what was in use when the limit was lowered. No handle is
// free then that the frame could do without. A handle is destroyed before another is created in its
// place, because the driver needs the memory first.
//
// Where the driver must not be called (platform/cuda/driver_use.h), take() returns an error,
// give_back() and trim() do nothing, and frames in use stay so.
//
// Threads: any. mutex_ is held for bookkeeping only, never across a call of the driver.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/units.h"
#include "base/use_count.h"
#include "platform/cuda/gpu.h"

namespace tencache {

/// Memory that the driver gives and maps as a whole.
struct FrameHandle {
  CUmemGenericAllocationHandle handle = 0;
  uint64_t bytes = 0;
  bool is_small = false;  // whether it serves (if free: served last) small requests
};

struct Frame {
  std::vector<FrameHandle> handles;  // in the order of their addresses
  uint64_t bytes = 0;
  bool is_small = false;
};

/// How much memory the pool has from the driver, and how many frames of it are taken.
struct FrameUse {
  UseCount bytes;   // of handles, free ones included
  UseCount frames;  // that were taken and not given back
};

/// The use by all requests, by small and by large ones. A handle that changes between small and
/// large requests leaves one kind and joins the other.
struct FrameUses {
  FrameUse all;  // its peak is not the sum of the others' peaks
  FrameUse small;
  FrameUse large;
};

class FramePool {
 public:
  static constexpr uint64_t kHandleBytesMax = 128 * kMiB;

  FramePool(const Gpu& gpu, uint64_t limit_bytes);
  /// REQUIRES: every frame was given back, unless the driver may no longer be called.
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  /// Takes a frame with undefined contents. REQUIRES: `bytes` is a multiple of the granularity and
  /// not 0. Returns kOutOfMemory when the frames in use leave no room below the limit, or when the
  /// GPU has no memory left because others use it; the message says which. Waits while another
  /// thread gives handles back to the driver.
  Result<Frame> take(uint64_t bytes) TENCACHE_EXCLUDES(mutex_) { return take(bytes, {}); }
  /// Does what take() does, for callers who count the memory in use themselves. Free handles are
  /// destroyed to stay below the limit, and below `allowed_bytes`; where that is not enough, both
  /// are exceeded.
  Result<Frame> take_reserved(uint64_t bytes, bool is_small = false,
                              uint64_t allowed_bytes = ~uint64_t{0}) TENCACHE_EXCLUDES(mutex_) {
    return take(bytes, {is_small, true, allowed_bytes});
  }
  /// Does what take_reserved() does, but returns kOutOfMemory where destroying free handles is not
  /// enough.
  Result<Frame> take_within(uint64_t allowed_bytes, uint64_t bytes, bool is_small)
      TENCACHE_EXCLUDES(mutex_) {
    return take(bytes, {is_small, false, allowed_bytes});
  }
  /// How many of these bytes free handles cannot provide.
  uint64_t missing(uint64_t bytes) const TENCACHE_EXCLUDES(mutex_);
  /// Stops counting a frame that stays mapped, as in a broken context, and is lost with that.
  void write_off(const Frame& frame) TENCACHE_EXCLUDES(mutex_);
  /// REQUIRES: the frame is mapped nowhere, and no work of the device uses it any more.
  void give_back(const Frame& frame) TENCACHE_EXCLUDES(mutex_);

  /// Frames in use were cut and joined: there are now `after` of them instead of `before`, of the
  /// same handles, for large requests.
  void recount(uint64_t before, uint64_t after) TENCACHE_EXCLUDES(mutex_);

  /// Destroys free handles, smallest first, until `bytes` went back to the driver or none is left;
  /// returns the bytes destroyed.
  uint64_t trim(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// Changes the limit. Free handles beyond it are destroyed; frames in use stay.
  void set_limit(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// Bytes of all handles, of the free ones, and of frames in use.
  uint64_t bytes() const TENCACHE_EXCLUDES(mutex_);
  uint64_t free_bytes() const TENCACHE_EXCLUDES(mutex_);
  uint64_t used_bytes() const TENCACHE_EXCLUDES(mutex_);
  FrameUses uses() const TENCACHE_EXCLUDES(mutex_);
  void reset_peaks() TENCACHE_EXCLUDES(mutex_);
  void reset_totals() TENCACHE_EXCLUDES(mutex_);

 private:
  using Handles = std::vector<FrameHandle>;
  struct Terms {
    bool is_small = false;
    bool is_reserved = false;  // the caller counts the memory in use
    uint64_t allowed_bytes = ~uint64_t{0};
  };
  Result<Frame> take(uint64_t bytes, const Terms& terms) TENCACHE_EXCLUDES(mutex_);
  uint64_t used_now() const TENCACHE_REQUIRES(mutex_) {
    return bytes_ - free_bytes_ - leaving_bytes_;
  }
  uint64_t missing_now(uint64_t bytes) const TENCACHE_REQUIRES(mutex_);
  uint64_t bytes_to_create(uint64_t bytes, uint64_t allowed_bytes) const TENCACHE_REQUIRES(mutex_);
  uint64_t largest_size_in(uint64_t bytes) const;
  Handles pick(uint64_t bytes) TENCACHE_REQUIRES(mutex_);
  Handles pick_smallest(uint64_t bytes) TENCACHE_REQUIRES(mutex_);
  Handles pick_others(uint64_t frame_bytes, uint64_t bytes) TENCACHE_REQUIRES(mutex_);
  void put_free(const Handles& handles) TENCACHE_REQUIRES(mutex_);
  Frame make_frame(Handles handles, bool is_small) TENCACHE_REQUIRES(mutex_);
  FrameUse& uses_of(bool is_small) TENCACHE_REQUIRES(mutex_) {
    return is_small ? uses_.small : uses_.large;
  }
  uint64_t destroy(const Handles& handles) TENCACHE_EXCLUDES(mutex_);
  Result<Frame> complete(Handles handles, uint64_t missing_bytes, bool is_small)
      TENCACHE_EXCLUDES(mutex_);
  Result<FrameHandle> create(uint64_t bytes, bool is_small) TENCACHE_EXCLUDES(mutex_);
  uint64_t destroyed_count() const TENCACHE_EXCLUDES(mutex_);
  bool has_destroyed_since(uint64_t count) TENCACHE_EXCLUDES(mutex_);
  uint64_t excess() const TENCACHE_REQUIRES(mutex_);
  Status no_room(uint64_t bytes) const TENCACHE_REQUIRES(mutex_);

  const Gpu& gpu_;
  const std::vector<uint64_t> sizes_;  // of handles, smallest first

  mutable Mutex mutex_;
  uint64_t limit_bytes_ TENCACHE_GUARDED_BY(mutex_);
  std::vector<Handles> free_ TENCACHE_GUARDED_BY(mutex_);  // by size; the newest last
  uint64_t free_bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;
  // The bytes of all handles, including those that are being created or destroyed. leaving_bytes_
  // holds the bytes of those that are being destroyed.
  uint64_t bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;
  uint64_t leaving_bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;
  uint64_t destroyed_count_ TENCACHE_GUARDED_BY(mutex_) = 0;
  FrameUses uses_ TENCACHE_GUARDED_BY(mutex_);
  CondVar has_left_;
};

}  // namespace tencache
