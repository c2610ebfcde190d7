// SPDX-License-Identifier: Apache-2.0
//
// CudaDevice: extents in the memory of one GPU, cold ones in host memory that is pinned and next
// to it, and below that on disk.
//
// Threads: create and destroy on one thread; the rest as its parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/stats.h"
#include "base/status.h"
#include "engine/device.h"
#include "engine/gate/event_timer.h"
#include "engine/move/gpu/stream_mover.h"
#include "learn/host_model.h"
#include "memory/cuda/cuda_heap.h"
#include "platform/cuda/copy_kernel.h"
#include "platform/cuda/cufile_api.h"
#include "platform/cuda/device_arena.h"
#include "platform/cuda/device_hasher.h"
#include "platform/cuda/direct_storage.h"
#include "platform/cuda/frame_pool.h"
#include "platform/cuda/gpu.h"
#include "platform/cuda/host_pinner.h"
#include "platform/cuda/nvrtc_api.h"
#include "platform/cuda/stream_mark.h"
#include "platform/cuda/stream_numbers.h"
#include "tier/disk_tier.h"
#include "tier/host_tier.h"
#include "tier/staging_ring.h"

namespace tencache {

struct CudaDeviceConfig {
  int ordinal = 0;           // of the GPU
  uint64_t arena_bytes = 0;  // of addresses; 0: many times what the GPU holds
  HeapConfig heap;
  std::optional<HostTierConfig> host;  // none: nothing ever goes cold. Node and pinner are set here
  std::optional<DiskTierConfig> disk;  // below the host; none: what finds no room there stays
  /// Share of the host's budget that is kept free by writing to disk in time; 0: it is written when
  /// the room is needed.
  double host_headroom = kHostHeadroomShare;
  std::optional<NvrtcApi> nvrtc;    // compiles the hash; none: every eviction copies
  std::optional<CuFileApi> cufile;  // reads the disk straight into the GPU, where it can
};

class CudaDevice final : public Device {
 public:
  /// `driver`, `budget` and `stats` outlive the backend.
  static Result<std::unique_ptr<CudaDevice>> open(const DriverApi& driver,
                                                  const CudaDeviceConfig& config, Budget& budget,
                                                  Stats& stats);
  /// REQUIRES: no thread uses it any more. Waits for the device.
  ~CudaDevice() override;

  CudaHeap& heap() override { return *heap_; }
  StreamMover* mover() override { return mover_.get(); }
  OpTimer* op_timer() override { return op_timer_.get(); }
  OpTimer* wait_timer() override { return wait_timer_.get(); }
  StreamSet set_of(void* stream) override {
    return streams_->set_of(static_cast<CUstream>(stream));
  }
  bool is_capturing(void* stream) override {
    return streams_->is_capturing(static_cast<CUstream>(stream));
  }
  StreamSet find_set_of(void* stream) override {
    return streams_->find_set_of(static_cast<CUstream>(stream));
  }
  bool is_current() override;
  Status device_status() override { return gpu_->status(); }
  HostTier* host() { return host_.get(); }
  DiskTier* disk() { return disk_.get(); }
  const Gpu& gpu() const { return *gpu_; }
  StreamNumbers& streams() { return *streams_; }

  // The children of a fork have no GPU, do not see the host tier and map no slots.
  void before_fork() override {}
  void after_fork_in_parent() override {}

 private:
  CudaDevice() = default;
  Status open_parts(const DriverApi& driver, const CudaDeviceConfig& config, Budget& budget,
                    Stats& stats);
  Status open_host(const CudaDeviceConfig& config);
  Status open_staging(std::unique_ptr<StagingRing>* staging);
  Status open_disk(const CudaDeviceConfig& config);
  void open_direct(const CuFileApi& cufile);
  Status open_migrations(const CudaDeviceConfig& config, Stats& stats);
  void open_hasher(const NvrtcApi& nvrtc);
  void open_copy_kernel(const NvrtcApi& nvrtc);

  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<CudaHostPinner> pinner_;
  std::unique_ptr<StreamMarks> marks_;
  std::unique_ptr<StreamNumbers> streams_;
  std::unique_ptr<EventTimer> op_timer_;
  std::unique_ptr<EventTimer> wait_timer_;
  std::unique_ptr<FramePool> frames_;
  std::unique_ptr<DeviceArena> arena_;
  std::unique_ptr<ExtentTable> table_;
  std::unique_ptr<HostTier> host_;
  std::unique_ptr<StagingRing> staging_out_;  // null where it could not be pinned
  std::unique_ptr<StagingRing> staging_in_;
  std::unique_ptr<DiskTier> disk_;
  std::unique_ptr<DirectStorage> direct_;  // null where it was not asked for, or cannot be had
  std::unique_ptr<CudaHeap> heap_;
  std::unique_ptr<DeviceHasher> hasher_;
  std::unique_ptr<CopyKernel> copy_kernel_;  // null where it cannot be had
  std::unique_ptr<StreamMover> mover_;
};

}  // namespace tencache
