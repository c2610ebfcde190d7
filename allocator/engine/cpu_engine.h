// SPDX-License-Identifier: Apache-2.0
//
// CpuEngine: an engine over the cpu backend, with its front door. Threads: create and destroy on
// one thread; the rest from any.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "engine/cpu_device.h"
#include "engine/engine.h"

namespace tencache {

struct CpuEngineConfig : EngineConfig, CpuDeviceConfig {};

class CpuEngine final : public Engine {
 public:
  static Result<std::unique_ptr<CpuEngine>> create(const CpuEngineConfig& config);

  Result<void*> allocate(uint64_t bytes) {
    const Result<Allocation> allocation = device_->heap().allocate(bytes);
    if (!allocation.is_ok()) return allocation.status();
    note_allocation(allocation.value().extent);
    return allocation.value().address;
  }
  void free(void* address) {
    note_free(address);
    device_->heap().free(address);
  }

  CpuHeap& heap() { return device_->heap(); }
  DiskTier* disk() { return device_->disk(); }
  const AddressArena& arena() const { return device_->arena(); }

 private:
  explicit CpuEngine(const EngineConfig& config) : Engine(config) {}

  CpuDevice* device_ = nullptr;  // the base owns it
};

}  // namespace tencache
