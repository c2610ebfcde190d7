// SPDX-License-Identifier: Apache-2.0
//
// DeviceArena: the addresses of one GPU's extents, reserved once and never moved. It maps frames
// under them. An access of the device to an address without a frame is a fault, so a range may be
// unmapped only when no queued work of the device uses it.
//
// Mapping, granting access and unmapping cost per handle of a frame. map() takes many frames at
// once and grants access to neighbours together. Ranges begin and end at multiples of the
// granularity. The caller hands out ranges, as with the cpu backend's AddressArena. Copies to the
// host pause while access is granted (platform/cuda/copy_pause.h).
//
// Other GPUs may become peers, which PyTorch asks for before the first copy between two GPUs. They
// may use all that is mapped, now and later.
//
// Threads: any. No two threads map or unmap the same range at once. mutex_ is a leaf lock but for
// CopyPause's; it is held while a peer is granted access, so that nothing is unmapped meanwhile.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "platform/cuda/copy_pause.h"
#include "platform/cuda/frame_pool.h"
#include "platform/cuda/gpu.h"

namespace tencache {

/// A frame and the address that its first handle is mapped at.
struct FramePlace {
  CUdeviceptr address = 0;
  Frame frame;
};

class DeviceArena {
 public:
  /// Reserves `bytes` of addresses, rounded up to the granularity, but no memory. `pause` may be
  /// null: then copies go on.
  static Result<std::unique_ptr<DeviceArena>> reserve(const Gpu& gpu, uint64_t bytes,
                                                      CopyPause* pause = nullptr);
  /// REQUIRES: nothing is mapped.
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  CUdeviceptr base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  bool contains(CUdeviceptr address) const { return address - base_ < bytes_; }

  /// Maps each frame at its address and lets the device read and write there: all of them or none.
  /// REQUIRES: the addresses ascend, and nothing is mapped at them.
  Status map(std::span<const FramePlace> places) TENCACHE_EXCLUDES(mutex_);
  /// Takes whole frames away from the range; they are the caller's again. REQUIRES: the whole range
  /// is mapped, and no queued work uses it.
  Status unmap(CUdeviceptr address, uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  /// From now on `device`, too, may read and write what is mapped here. The driver refuses where
  /// the two devices are no peers.
  Status add_peer(int device) TENCACHE_EXCLUDES(mutex_);

 private:
  using Handles = std::map<CUdeviceptr, uint64_t>;  // bytes of each handle, by its address

  DeviceArena(const Gpu& gpu, CUdeviceptr base, uint64_t bytes, CopyPause* pause);
  Status map_handles(std::span<const FramePlace> places, Handles* mapped);
  Status grant_access(std::span<const FramePlace> places, std::span<const CUmemAccessDesc> devices);
  Status grant_access(CUdeviceptr address, uint64_t bytes,
                      std::span<const CUmemAccessDesc> devices);
  std::vector<CUmemAccessDesc> note_mapped(const Handles& handles) TENCACHE_EXCLUDES(mutex_);
  Handles take_mapped(CUdeviceptr address, uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  const Gpu& gpu_;
  const CUdeviceptr base_;
  const uint64_t bytes_;
  CopyPause* const pause_;

  Mutex mutex_;
  std::vector<CUmemAccessDesc> devices_ TENCACHE_GUARDED_BY(mutex_);  // this one, then its peers
  Handles mapped_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
