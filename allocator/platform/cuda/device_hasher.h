// SPDX-License-Identifier: Apache-2.0
//
// DeviceHasher: hashes ranges of one GPU's memory in place (platform/cuda/device_hash.h), in a
// stream, after the work that the stream was given before. It owns the compiled kernel and the
// places that the kernel's blocks write their sums to. A place is pinned host memory that the
// device writes directly, 32 bytes a block. So a hash is one launch: it needs no copy back and no
// device memory, and the sums are there when the kernel has ended. PendingHash: one hash under way,
// and its place.
//
// Invariant: a place is reused only once its PendingHash is gone, which is after its kernel.
//
// Threads: any. mutex_ is held for bookkeeping only, never across a call of the driver. A
// PendingHash has one owner; the hasher outlives it. Where the driver must not be called
// (platform/cuda/driver_use.h) nothing is hashed, and everything stays as it is.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "platform/cuda/device_hash.h"
#include "platform/cuda/gpu.h"
#include "platform/cuda/loaded_kernel.h"
#include "platform/cuda/nvrtc_api.h"
#include "platform/cuda/zero_copy_memory.h"

namespace tencache {

class DeviceHasher;

/// A hash under way, which owns the place of its sums. REQUIRES: the object is destroyed only when
/// value() may be called.
class PendingHash {
 public:
  /// REQUIRES: the device has reached, without an error, a mark that was made in the stream after
  /// the hash was queued. If the stream failed instead, the value is worth nothing.
  DeviceHash value() const;

 private:
  friend class DeviceHasher;
  struct GiveBack {
    unsigned place = 0;

    void operator()(DeviceHasher* hasher) const;
  };

  PendingHash(DeviceHasher* hasher, unsigned place, unsigned blocks, uint64_t bytes)
      : hasher_(hasher, GiveBack{place}), blocks_(blocks), bytes_(bytes) {}

  std::unique_ptr<DeviceHasher, GiveBack> hasher_;  // not owned, but its place is
  unsigned blocks_;                                 // number of blocks that write to the place
  uint64_t bytes_;
};

class DeviceHasher {
 public:
  /// Compiles the kernel for the GPU, which takes some tenths of a second. Errors are those of
  /// NVRTC and of the driver.
  static Result<std::unique_ptr<DeviceHasher>> create(const Gpu& gpu, const NvrtcApi& nvrtc,
                                                      const DeviceHashSeeds& seeds);
  /// REQUIRES: no hash is under way, unless the driver may no longer be called.
  ~DeviceHasher();
  DeviceHasher(const DeviceHasher&) = delete;
  DeviceHasher& operator=(const DeviceHasher&) = delete;

  /// Queues the hash of the range and returns at once. REQUIRES: the address is a multiple of 16,
  /// the range stays mapped until the device reaches a mark that is made afterwards, and the stream
  /// is not capturing a graph. Returns kUnavailable when kPlaceCount hashes are under way.
  Result<PendingHash> hash(CUstream stream, CUdeviceptr address, uint64_t bytes)
      TENCACHE_EXCLUDES(mutex_);

  static constexpr unsigned kPlaceCount = 64;
  static constexpr unsigned kBlocksMax = 2048;  // of one launch; 64 KiB a place

 private:
  friend class PendingHash;
  DeviceHasher(const DeviceHashSeeds& seeds, std::unique_ptr<ZeroCopyMemory> places,
               std::unique_ptr<LoadedKernel> kernel);

  HashSums* place_on_host(unsigned place) const;
  Result<unsigned> take_place() TENCACHE_EXCLUDES(mutex_);
  void give_back_place(unsigned place) TENCACHE_EXCLUDES(mutex_);

  const DeviceHashSeeds seeds_;
  const HashJob job_;  // the part that all jobs have in common
  const std::unique_ptr<ZeroCopyMemory> places_;
  const std::unique_ptr<LoadedKernel> kernel_;
  const unsigned blocks_max_;

  Mutex mutex_;
  std::vector<unsigned> free_places_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
