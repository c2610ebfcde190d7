// SPDX-License-Identifier: Apache-2.0
//
// CudaEngine: an engine over the cuda backend, with its front door. Threads: create and destroy on
// one thread; the rest from any.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "base/units.h"
#include "engine/cuda_device.h"
#include "engine/engine.h"

namespace tencache {

struct CudaEngineConfig : EngineConfig, CudaDeviceConfig {
  uint64_t probe_bytes = 64 * kMiB;  // copied each way to measure the link; 0: not measured
};

class CudaEngine final : public Engine {
 public:
  /// `driver` outlives the engine.
  static Result<std::unique_ptr<CudaEngine>> create(const DriverApi& driver,
                                                    const CudaEngineConfig& config);

  /// Memory that the stream may use at once.
  Result<void*> allocate(uint64_t bytes, CUstream stream) {
    const Result<Allocation> allocation =
        device_->heap().allocate(bytes, device_->streams().set_of(stream));
    if (!allocation.is_ok()) return allocation.status();
    note_allocation(allocation.value().extent);
    return allocation.value().address;
  }
  /// The same from a private pool (memory/cuda/private_pools.h), whose memory never leaves the GPU.
  Result<void*> allocate_private(uint64_t pool, uint64_t bytes, CUstream stream) {
    const Result<Allocation> allocation =
        device_->heap().allocate_private(pool, bytes, device_->streams().set_of(stream));
    if (!allocation.is_ok()) return allocation.status();
    return allocation.value().address;
  }
  void free(void* address) {
    note_free(address);
    device_->heap().free(address);
  }
  /// The device budget from now on; what is above it leaves as far as it may. `is_bounded`: what
  /// does not fit even then is refused.
  void set_budget(uint64_t bytes, bool is_bounded);
  /// The stream uses the memory too, which must not be used again before it is done with it.
  void record_stream(const void* address, CUstream stream) {
    device_->heap().note_use(address, device_->streams().set_of(stream));
  }
  /// gate().open() for an op that queues its work on this stream.
  void open_op(uint32_t op, std::span<const Access> accesses, CUstream stream) {
    gate().open(op, accesses, device_->streams().set_of(stream));
  }

  CudaHeap& heap() { return device_->heap(); }
  HostTier* host() { return device_->host(); }
  DiskTier* disk() { return device_->disk(); }
  CudaDevice& backend() { return *device_; }

 private:
  explicit CudaEngine(const EngineConfig& config) : Engine(config) {}

  CudaDevice* device_ = nullptr;  // the base owns it
};

}  // namespace tencache
