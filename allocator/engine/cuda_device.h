// SPDX-License-Identifier: Apache-2.0
//
// CudaDevice: extents in the memory of one GPU, cold ones in host memory of its NUMA node, pinned
// where that succeeds, and below that on disk.
//
// Threads: create and destroy on one thread; call the rest from any, as far as the headers of the
// parts allow it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/stats.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/device.h"
#include "engine/gate/event_timer.h"
#include "engine/move/cuda/stream_mover.h"
#include "learn/host_model.h"
#include "memory/cuda/cuda_heap_view.h"
#include "platform/cuda/copy_kernel.h"
#include "platform/cuda/copy_pause.h"
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
  uint64_t budget_bytes = 0;
  int ordinal = 0;           // of the GPU
  uint64_t arena_bytes = 0;  // of addresses; 0: many times what the GPU holds
  HeapConfig heap;
  /// The host tier. Without one, nothing ever goes cold. The device sets node and pinner.
  std::optional<HostTierConfig> host;
  std::optional<DiskTierConfig> disk;  // below the host; none: what finds no room there stays
  /// Share of the host's budget that a thread keeps free where there is a disk. At 0 no thread
  /// reads or writes ahead, and the disk is written to when the room is needed.
  double host_headroom = kHostHeadroomShare;
  uint64_t wait_resolution_ns = EventTimer::kResolutionNs;  // shorter waits count as none
  uint64_t probe_bytes = 64 * kMiB;  // copied each way to measure the link; 0: not measured
  std::optional<NvrtcApi> nvrtc;     // compiles hash and copy kernel; none: every eviction copies
  std::optional<CuFileApi> cufile;   // reads the disk straight into the GPU, where it can
};

class CudaDevice final : public Device {
 public:
  /// `driver` outlives the device.
  static Result<std::unique_ptr<CudaDevice>> open(const DriverApi& driver,
                                                  const CudaDeviceConfig& config);
  /// REQUIRES: no thread uses the device any more. Waits for the GPU.
  ~CudaDevice() override;

  CudaHeap& heap() override { return *heap_; }
  /// What the program may ask about its memory.
  CudaHeapView view() { return CudaHeapView(*heap_); }
  StreamMover* mover() override { return mover_.get(); }
  OpTimer* op_timer() override { return op_timer_.get(); }
  OpTimer* wait_timer() override { return wait_timer_.get(); }
  StreamSet set_of(void* stream) override {
    return streams_->set_of(static_cast<CUstream>(stream));
  }
  bool is_capturing(void* stream) override {
    return streams_->is_capturing(static_cast<CUstream>(stream));
  }
  std::optional<int> exchange_capture_mode(int mode) override {
    return streams_->exchange_capture_mode(static_cast<CUstreamCaptureMode>(mode));
  }
  StreamSet find_set_of(void* stream) override {
    return streams_->find_set_of(static_cast<CUstream>(stream));
  }
  bool is_current() override;
  Status status() override { return gpu_->status(); }
  Status measure() override;
  HostTier* host() override { return host_.get(); }
  DiskTier* disk() override { return disk_.get(); }
  const Gpu& gpu() const { return *gpu_; }
  StreamNumbers& streams() { return *streams_; }

  Result<Allocation> allocate(uint64_t bytes, void* stream) override {
    return heap_->allocate(bytes, streams_->set_of(static_cast<CUstream>(stream)));
  }
  void free(void* address) override { heap_->free(address); }
  /// Memory of a private pool (memory/cuda/private_pools.h), which never leaves the GPU.
  Result<Allocation> allocate_private(uint64_t pool, uint64_t bytes, CUstream stream) {
    return heap_->allocate_private(pool, bytes, streams_->set_of(stream));
  }
  /// Notes that the stream uses the memory, too. Once the memory is freed, nobody else gets it
  /// before the stream is done with it.
  void record_stream(const void* address, CUstream stream) {
    heap_->note_use(address, streams_->set_of(stream));
  }

 private:
  explicit CudaDevice(const CudaDeviceConfig& config)
      : Device(config.budget_bytes), probe_bytes_(config.probe_bytes) {}
  Status open_parts(const DriverApi& driver, const CudaDeviceConfig& config);
  Status open_host(const CudaDeviceConfig& config);
  Status open_staging(std::unique_ptr<StagingRing>* staging);
  void open_direct(const CuFileApi& cufile);
  Status open_mover(const CudaDeviceConfig& config);
  void open_hasher(const NvrtcApi& nvrtc);
  void open_copy_kernel(const NvrtcApi& nvrtc);
  void open_pause();

  const uint64_t probe_bytes_;
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<CudaHostPinner> pinner_;
  std::unique_ptr<StreamMarks> marks_;
  std::unique_ptr<StreamNumbers> streams_;
  std::unique_ptr<EventTimer> op_timer_;
  std::unique_ptr<EventTimer> wait_timer_;
  std::unique_ptr<FramePool> frames_;
  std::unique_ptr<CopyPause> pause_;  // null without a host tier, or where it cannot be had
  std::unique_ptr<DeviceArena> arena_;
  std::unique_ptr<ExtentTable> table_;
  std::unique_ptr<HostTier> host_;
  // Each ring is null without a host tier, or where it could not be pinned.
  std::unique_ptr<StagingRing> staging_out_;
  std::unique_ptr<StagingRing> staging_in_;
  std::unique_ptr<DiskTier> disk_;
  std::unique_ptr<DirectStorage> direct_;  // null where it was not asked for, or cannot be had
  std::unique_ptr<CudaHeap> heap_;
  std::unique_ptr<DeviceHasher> hasher_;
  std::unique_ptr<CopyKernel> copy_kernel_;  // null where it cannot be had
  std::unique_ptr<StreamMover> mover_;
};

}  // namespace tencache
