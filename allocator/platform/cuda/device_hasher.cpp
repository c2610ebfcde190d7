// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/device_hasher.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "platform/cuda/driver_use.h"

namespace tencache {
namespace {

// Blocks of 128 threads. The registers of the kernel allow this many blocks, which have four loads
// of 16 bytes a thread in flight, 64 KiB a multiprocessor. Hiding 0.7 us at 4.8 TB/s takes 25 KiB.
// On an H200 4 and 8 blocks a multiprocessor were equally fast (benchmarks/gpu/experiments, E6).
constexpr unsigned kBlocksPerMultiprocessor = 8;

constexpr uint64_t kPlaceBytes = DeviceHasher::kBlocksMax * sizeof(HashSums);

}  // namespace

// ---- One hash ------------------------------------------------------------------------------

DeviceHash PendingHash::value() const {
  TENCACHE_CHECK(hasher_ != nullptr, "the hash was moved away");
  const unsigned place = hasher_.get_deleter().place;
  return finish_hash(hasher_->seeds_, bytes_, {hasher_->place_on_host(place), blocks_});
}

void PendingHash::GiveBack::operator()(DeviceHasher* hasher) const {
  // Where the driver must not be called, the hasher may already be gone.
  if (may_call_driver()) hasher->give_back_place(place);
}

// ---- Making and ending -----------------------------------------------------------------------

DeviceHasher::DeviceHasher(const DeviceHashSeeds& seeds, std::unique_ptr<ZeroCopyMemory> places,
                           std::unique_ptr<LoadedKernel> kernel)
    : seeds_(seeds),
      job_(make_hash_job(seeds)),
      places_(std::move(places)),
      kernel_(std::move(kernel)),
      blocks_max_(
          std::clamp(kernel_->multiprocessors() * kBlocksPerMultiprocessor, 1u, kBlocksMax)) {
  for (unsigned place = kPlaceCount; place > 0; --place) free_places_.push_back(place - 1);
}

Result<std::unique_ptr<DeviceHasher>> DeviceHasher::create(const Gpu& gpu, const NvrtcApi& nvrtc,
                                                           const DeviceHashSeeds& seeds) {
  TENCACHE_RETURN_IF_ERROR(driver_use_status());
  Result<std::unique_ptr<LoadedKernel>> kernel =
      LoadedKernel::create(gpu, nvrtc, kDeviceHashKernelName, device_hash_kernel_text(), "hashes");
  if (!kernel.is_ok()) return kernel.status();
  Result<std::unique_ptr<ZeroCopyMemory>> places =
      ZeroCopyMemory::create(gpu, kPlaceCount * kPlaceBytes);
  if (!places.is_ok()) return places.status();
  return std::unique_ptr<DeviceHasher>(
      new DeviceHasher(seeds, std::move(places).value(), std::move(kernel).value()));
}

DeviceHasher::~DeviceHasher() {
  if (!may_call_driver()) return;
  MutexLock lock(mutex_);
  TENCACHE_CHECK(free_places_.size() == kPlaceCount, "%zu hashes are still under way",
                 kPlaceCount - free_places_.size());
}

// ---- Hashing -------------------------------------------------------------------------------

Result<PendingHash> DeviceHasher::hash(CUstream stream, CUdeviceptr address, uint64_t bytes) {
  TENCACHE_CHECK(address % 16 == 0, "the address 0x%llx is not a multiple of 16", address);
  TENCACHE_RETURN_IF_ERROR(driver_use_status());
  const Result<unsigned> place = take_place();
  if (!place.is_ok()) return place.status();
  const auto blocks =
      static_cast<unsigned>(std::min<uint64_t>(hash_chunk_count(bytes), blocks_max_));
  PendingHash pending(this, place.value(), blocks, bytes);
  HashJob job = job_;
  job.data = reinterpret_cast<const unsigned char*>(address);
  job.bytes = bytes;
  job.sums = reinterpret_cast<HashSums*>(places_->device_address() + place.value() * kPlaceBytes);
  TENCACHE_RETURN_IF_ERROR(kernel_->launch(stream, blocks, kHashLanes, &job));
  return pending;
}

HashSums* DeviceHasher::place_on_host(unsigned place) const {
  return reinterpret_cast<HashSums*>(places_->host_address() + place * kPlaceBytes);
}

Result<unsigned> DeviceHasher::take_place() {
  MutexLock lock(mutex_);
  if (free_places_.empty()) {
    return Status(StatusCode::kUnavailable,
                  "The GPU has " + std::to_string(kPlaceCount) +
                      " hashes under way, the most that are allowed at once.");
  }
  const unsigned place = free_places_.back();
  free_places_.pop_back();
  return place;
}

void DeviceHasher::give_back_place(unsigned place) {
  MutexLock lock(mutex_);
  free_places_.push_back(place);
}

}  // namespace tencache
