// SPDX-License-Identifier: Apache-2.0
//
// CpuEngine: an engine over the cpu backend, with its front door. Threads: create and destroy on
// one thread; the rest from any.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "engine/cpu_backend.h"
#include "engine/engine.h"

namespace tencache {

struct CpuEngineConfig : EngineConfig, CpuBackendConfig {};

class CpuEngine final : public Engine {
 public:
  static Result<std::unique_ptr<CpuEngine>> create(const CpuEngineConfig& config);

  Result<void*> allocate(uint64_t bytes) {
    const Result<Allocation> allocation = backend_->heap().allocate(bytes);
    if (!allocation.is_ok()) return allocation.status();
    note_allocation(allocation.value().extent);
    return allocation.value().address;
  }
  void free(void* address) {
    note_free(address);
    backend_->heap().free(address);
  }

  CpuHeap& heap() { return backend_->heap(); }
  DiskTier* disk() { return backend_->disk(); }
  const AddressArena& arena() const { return backend_->arena(); }

 private:
  explicit CpuEngine(const EngineConfig& config) : Engine(config) {}

  CpuBackend* backend_ = nullptr;  // the base owns it
};

}  // namespace tencache
