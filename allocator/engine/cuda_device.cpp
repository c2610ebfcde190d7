// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda_device.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/move/cuda/stream_parts.h"
#include "platform/cuda/driver_use.h"

namespace tencache {
namespace {

// Addresses cost only table entries where they are used, and freed ranges of other sizes lie
// between those in use. So an arena has several times the bytes of the GPU, or of all tiers where
// that is more: a cold tensor keeps its addresses.
constexpr uint64_t kArenaPerGpuByte = 8;
constexpr uint64_t kArenaPerByte = 3;
constexpr uint64_t kArenaBytesMax = 4096 * kGiB;

// How many addresses would do for all that the tiers hold; a disk without a quota holds anything.
uint64_t addresses_for_all(const CudaDeviceConfig& config, uint64_t gpu_bytes) {
  if (!config.host) return 0;
  const uint64_t host_bytes = config.host->budget_bytes;
  const uint64_t disk_bytes = config.disk ? config.disk->quota_bytes.value_or(kArenaBytesMax) : 0;
  const uint64_t below_bytes =
      std::min(host_bytes, kArenaBytesMax) + std::min(disk_bytes, kArenaBytesMax);
  return std::min(kArenaPerByte * (gpu_bytes + below_bytes), kArenaBytesMax);
}

Result<std::unique_ptr<DeviceArena>> reserve_arena(const CudaDeviceConfig& config, const Gpu& gpu,
                                                   CopyPause* pause) {
  const auto reserve = [&](uint64_t bytes) {
    return DeviceArena::reserve(gpu, round_up(bytes, kGranuleBytes), pause);
  };
  if (config.arena_bytes > 0) return reserve(config.arena_bytes);
  const uint64_t gpu_bytes = gpu.facts().total_bytes;
  const uint64_t least_bytes = kArenaPerGpuByte * gpu_bytes;
  const uint64_t most_bytes = addresses_for_all(config, gpu_bytes);
  if (most_bytes > least_bytes) {
    Result<std::unique_ptr<DeviceArena>> arena = reserve(most_bytes);
    if (arena.is_ok()) return arena;  // else the driver or a limit (ulimit -v) refuses so many
  }
  return reserve(least_bytes);
}

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(const DriverApi& driver,
                                                     const CudaDeviceConfig& config) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(config));
  TENCACHE_RETURN_IF_ERROR(device->open_parts(driver, config));
  return device;
}

// The members go from the last to the first, each before what it stands on.
CudaDevice::~CudaDevice() = default;

Status CudaDevice::open_parts(const DriverApi& driver, const CudaDeviceConfig& config) {
  TENCACHE_RETURN_IF_ERROR(Gpu::open(driver, config.ordinal).move_to(&gpu_));
  pinner_ = std::make_unique<CudaHostPinner>(driver, gpu_->context());
  marks_ = std::make_unique<StreamMarks>(*gpu_);
  streams_ = std::make_unique<StreamNumbers>(*gpu_, *marks_);
  op_timer_ = std::make_unique<EventTimer>(*gpu_, *streams_);
  wait_timer_ = std::make_unique<EventTimer>(*gpu_, *streams_, config.wait_resolution_ns);
  frames_ = std::make_unique<FramePool>(*gpu_, budget().limit());
  if (config.host) open_pause();
  TENCACHE_RETURN_IF_ERROR(reserve_arena(config, *gpu_, pause_.get()).move_to(&arena_));
  TENCACHE_RETURN_IF_ERROR(
      ExtentTable::create(reinterpret_cast<const char*>(arena_->base()), arena_->bytes())
          .move_to(&table_));
  if (config.host) TENCACHE_RETURN_IF_ERROR(open_host(config));
  if (config.host && config.disk) {
    TENCACHE_RETURN_IF_ERROR(DiskTier::open(*config.disk).move_to(&disk_));
    if (config.cufile) open_direct(*config.cufile);
  }
  heap_ = std::make_unique<CudaHeap>(config.heap, *gpu_, *arena_, *frames_, *streams_, host_.get(),
                                     disk_.get(), *table_, budget(), stats());
  if (!config.host) return Status::ok();
  if (config.nvrtc) open_hasher(*config.nvrtc);
  if (config.nvrtc) open_copy_kernel(*config.nvrtc);
  return open_mover(config);
}

Status CudaDevice::measure() {
  if (mover_ == nullptr) return Status::ok();
  TENCACHE_RETURN_IF_ERROR(mover_->measure_link(probe_bytes_));
  // The probe does not count as use by the program.
  view().reset_peaks();
  view().reset_totals();
  stats().peak_device_bytes = budget().used();
  return Status::ok();
}

bool CudaDevice::is_current() {
  CUcontext context = nullptr;
  return may_call_driver() && gpu_->driver().cuCtxGetCurrent(&context) == CUDA_SUCCESS &&
         context == gpu_->context();
}

Status CudaDevice::open_host(const CudaDeviceConfig& config) {
  HostTierConfig host_config = *config.host;
  host_config.node = gpu_->facts().numa_node;
  host_config.pinner = pinner_.get();
  TENCACHE_RETURN_IF_ERROR(HostTier::create(std::move(host_config)).move_to(&host_));
  // The staging buffers come before any block: they help where the limit on locked memory leaves
  // blocks unpinned, so they must be pinned while it has room.
  TENCACHE_RETURN_IF_ERROR(open_staging(&staging_out_));
  return open_staging(&staging_in_);
}

Status CudaDevice::open_staging(std::unique_ptr<StagingRing>* staging) {
  Result<std::unique_ptr<StagingRing>> ring =
      StagingRing::create({.node = gpu_->facts().numa_node, .pinner = pinner_.get()});
  if (!ring.is_ok()) return ring.status();
  // Plain buffers are no better than the driver's own.
  if (ring.value()->is_pinned()) *staging = std::move(ring).value();
  return Status::ok();
}

// Opens direct storage where that is possible. Without it, the disk is read by way of host memory.
void CudaDevice::open_direct(const CuFileApi& cufile) {
  Status status(StatusCode::kUnavailable, "The spill file's directory takes no O_DIRECT.");
  if (disk_->uses_direct_io()) {
    status = DirectStorage::open(*gpu_, *marks_, cufile, disk_->fd()).move_to(&direct_);
  }
  if (status.is_ok()) return;
  TENCACHE_LOG_WARNING("the disk is not read straight into the GPU, but through host memory: %s",
                       status.clause().c_str());
}

Status CudaDevice::open_mover(const CudaDeviceConfig& config) {
  CopyStreams streams;
  TENCACHE_RETURN_IF_ERROR(
      CopyStreams::create(*gpu_, *marks_, *streams_, pause_.get()).move_to(&streams));
  mover_ = std::make_unique<StreamMover>(
      *heap_, std::move(streams),
      TiersBelow{*host_, {staging_out_.get(), staging_in_.get()}, disk_.get(), direct_.get()},
      DeviceKernels{hasher_.get(), copy_kernel_.get()}, stats());
  mover_->keep_host_free(
      static_cast<uint64_t>(static_cast<double>(host_->budget_bytes()) * config.host_headroom));
  return Status::ok();
}

// Makes the hasher where that is possible. Without it everything works, and more is copied.
void CudaDevice::open_hasher(const NvrtcApi& nvrtc) {
  const Result<DeviceHashSeeds> seeds = draw_hash_seeds();
  Status status = seeds.status();
  if (seeds.is_ok()) status = DeviceHasher::create(*gpu_, nvrtc, seeds.value()).move_to(&hasher_);
  if (status.is_ok()) return;
  TENCACHE_LOG_WARNING("copies in host memory cannot be verified, so each eviction copies anew: %s",
                       status.clause().c_str());
}

// Makes the pause where that is possible. Without it, mappings wait for copies.
void CudaDevice::open_pause() {
  const Status status = CopyPause::create(*gpu_).move_to(&pause_);
  if (status.is_ok()) return;
  TENCACHE_LOG_DEBUG("copies do not pause for mappings: %s", status.clause().c_str());
}

// Makes the copy kernel where that is possible. Without it, the copy engines make all copies.
void CudaDevice::open_copy_kernel(const NvrtcApi& nvrtc) {
  const Status status = CopyKernel::create(*gpu_, nvrtc).move_to(&copy_kernel_);
  if (status.is_ok()) return;
  TENCACHE_LOG_DEBUG("copies are left to the copy engines: %s", status.clause().c_str());
}

}  // namespace tencache
