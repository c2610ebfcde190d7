// SPDX-License-Identifier: Apache-2.0
//
// HostRegistrations: records which host memory is page-locked for the simulated device; it locks
// nothing. Invariants: no two registrations overlap; their sum and each of them stay within the
// limits of the config. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/mutex.h"
#include "support/cuda/simulated_driver_config.h"

namespace tencache {

enum class HostMemoryKind : uint8_t {
  kPageable,    // no byte is registered
  kRegistered,  // all of it lies in one registration
  kTorn,        // partly registered, or in several registrations; no copy takes it
};

class HostRegistrations {
 public:
  explicit HostRegistrations(const SimulatedDriverConfig& config) : config_(config) {}

  CUresult add(void* memory, size_t bytes, unsigned flags) TENCACHE_EXCLUDES(mutex_);
  CUresult remove(void* memory) TENCACHE_EXCLUDES(mutex_);

  /// The device's address of registered memory, which is the host's own.
  CUresult device_pointer(CUdeviceptr* address, void* memory, unsigned flags)
      TENCACHE_EXCLUDES(mutex_);

  HostMemoryKind kind(const void* memory, size_t bytes) const TENCACHE_EXCLUDES(mutex_);
  /// One line for each registration.
  std::string leaks() const TENCACHE_EXCLUDES(mutex_);

 private:
  bool overlaps(uint64_t begin, uint64_t end) const TENCACHE_REQUIRES(mutex_);

  const SimulatedDriverConfig config_;
  mutable Mutex mutex_;
  std::map<uint64_t, uint64_t> ends_ TENCACHE_GUARDED_BY(mutex_);  // by first address
  uint64_t bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;
};

}  // namespace tencache
