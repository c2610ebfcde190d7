// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/device_hasher.h"

#include <algorithm>
#include <string>

#include "backend/cuda/call_scope.h"
#include "backend/cuda/driver_use.h"
#include "base/check.h"
#include "base/units.h"

namespace tencache {
namespace {

// Of 128 threads each. So many fit by the registers that the kernel takes, and keep four loads of
// 16 bytes a thread in flight, 64 KiB a multiprocessor; to hide 0.7 us at 4.8 TB/s takes 25 KiB.
// Calculated, not measured.
constexpr unsigned kBlocksPerMultiprocessor = 8;

constexpr uint64_t kSlotBytes = DeviceHasher::kBlocksMax * sizeof(HashSums);

}  // namespace

// ---- One hash ------------------------------------------------------------------------------

PendingHash& PendingHash::operator=(PendingHash&& other) noexcept {
  if (this != &other) {
    drop();
    hasher_ = std::exchange(other.hasher_, nullptr);
    slot_ = other.slot_;
    blocks_ = other.blocks_;
    bytes_ = other.bytes_;
  }
  return *this;
}

DeviceHash PendingHash::value() const {
  TENCACHE_CHECK(hasher_ != nullptr, "the hash was moved away");
  return finish_hash(hasher_->seeds_, bytes_, {hasher_->slot_on_host(slot_), blocks_});
}

void PendingHash::drop() {
  // Where the driver must not be called, the hasher may be gone already.
  if (hasher_ != nullptr && may_call_driver()) hasher_->give_back_slot(slot_);
  hasher_ = nullptr;
}

// ---- Making and ending -----------------------------------------------------------------------

DeviceHasher::DeviceHasher(const Gpu& gpu, const DeviceHashSeeds& seeds, HostMemory slots)
    : gpu_(gpu), seeds_(seeds), job_(make_hash_job(seeds)), slots_(std::move(slots)) {
  for (unsigned slot = kSlotCount; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

Result<std::unique_ptr<DeviceHasher>> DeviceHasher::create(const Gpu& gpu, const NvrtcApi& nvrtc,
                                                           const DeviceHashSeeds& seeds) {
  TENCACHE_RETURN_IF_ERROR(driver_use_status());
  Result<HostMemory> slots =
      HostMemory::map({.bytes = kSlotCount * kSlotBytes, .node = gpu.facts().numa_node});
  if (!slots.is_ok()) return slots.status();
  // What fails gives back by its destructor what was made before.
  std::unique_ptr<DeviceHasher> hasher(new DeviceHasher(gpu, seeds, std::move(slots).value()));
  Result<std::unique_ptr<LoadedKernel>> kernel =
      LoadedKernel::create(gpu, nvrtc, kDeviceHashKernelName, device_hash_kernel_text(), "hashes");
  if (!kernel.is_ok()) return kernel.status();
  hasher->kernel_ = std::move(kernel).value();
  hasher->blocks_max_ =
      std::clamp(hasher->kernel_->multiprocessors() * kBlocksPerMultiprocessor, 1u, kBlocksMax);
  TENCACHE_RETURN_IF_ERROR(hasher->pin_slots());
  return hasher;
}

Status DeviceHasher::pin_slots() {
  const DriverApi& driver = gpu_.driver();
  const CallScope scope(driver, gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  TENCACHE_RETURN_IF_ERROR(cuda_status(
      driver, driver.cuMemHostRegister(slots_.data(), slots_.bytes(), CU_MEMHOSTREGISTER_DEVICEMAP),
      "Cannot pin " + format_bytes(slots_.bytes()) + " of host memory for hashes"));
  CUdeviceptr address = 0;
  Status found = cuda_status(driver, driver.cuMemHostGetDevicePointer(&address, slots_.data(), 0),
                             "The GPU cannot write to host memory");
  if (found.is_ok()) {
    device_slots_ = address;
  } else {
    (void)driver.cuMemHostUnregister(slots_.data());
  }
  return found;
}

// A refusal is of earlier work, which the program hears of itself.
DeviceHasher::~DeviceHasher() {
  if (!may_call_driver()) return;
  const DriverApi& driver = gpu_.driver();
  const CallScope scope(driver, gpu_.context());
  {
    MutexLock lock(mutex_);
    TENCACHE_CHECK(free_slots_.size() == kSlotCount, "%zu hashes are still under way",
                   kSlotCount - free_slots_.size());
  }
  if (!scope.status().is_ok()) return;
  if (device_slots_ != 0) (void)driver.cuMemHostUnregister(slots_.data());
}

// ---- Hashing -------------------------------------------------------------------------------

Result<PendingHash> DeviceHasher::hash(CUstream stream, CUdeviceptr address, uint64_t bytes) {
  TENCACHE_CHECK(address % 16 == 0, "the address 0x%llx is not a multiple of 16", address);
  TENCACHE_RETURN_IF_ERROR(driver_use_status());
  const Result<unsigned> slot = take_slot();
  if (!slot.is_ok()) return slot.status();
  const auto blocks =
      static_cast<unsigned>(std::min<uint64_t>(hash_chunk_count(bytes), blocks_max_));
  PendingHash pending(this, slot.value(), blocks, bytes);
  HashJob job = job_;
  job.data = reinterpret_cast<const unsigned char*>(address);
  job.bytes = bytes;
  job.sums = reinterpret_cast<HashSums*>(device_slots_ + slot.value() * kSlotBytes);
  TENCACHE_RETURN_IF_ERROR(kernel_->launch(stream, blocks, kHashLanes, &job));
  return pending;
}

HashSums* DeviceHasher::slot_on_host(unsigned slot) const {
  return reinterpret_cast<HashSums*>(slots_.data() + slot * kSlotBytes);
}

Result<unsigned> DeviceHasher::take_slot() {
  MutexLock lock(mutex_);
  if (free_slots_.empty()) {
    return Status(StatusCode::kUnavailable,
                  "There are " + std::to_string(kSlotCount) +
                      " hashes under way on the GPU, as many as there may be.");
  }
  const unsigned slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void DeviceHasher::give_back_slot(unsigned slot) {
  MutexLock lock(mutex_);
  free_slots_.push_back(slot);
}

}  // namespace tencache
