// SPDX-License-Identifier: Apache-2.0
//
// HostRegistrations: records which host memory is page-locked for the simulated devices; it locks
// nothing. Without CU_MEMHOSTREGISTER_PORTABLE memory is page-locked for the device that is current
// at the call, and pageable for others. Invariants: no two registrations overlap; their sum and
// each of them stay within the limits of the config. Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/mutex.h"
#include "support/cuda/simulated_devices.h"
#include "support/cuda/simulated_driver_config.h"

namespace tencache {

enum class HostMemoryKind : uint8_t {
  kPageable,    // no byte is registered, or not for the device
  kRegistered,  // all of it lies in one registration
  kTorn,        // partly registered, or in several registrations; no copy takes it
};

class HostRegistrations {
 public:
  HostRegistrations(const SimulatedDriverConfig& config, const SimulatedDevices& devices)
      : config_(config), devices_(devices) {}

  CUresult add(void* memory, size_t bytes, unsigned flags) TENCACHE_EXCLUDES(mutex_);
  CUresult remove(void* memory) TENCACHE_EXCLUDES(mutex_);

  /// The device's address of registered memory, which is the host's own.
  CUresult device_pointer(CUdeviceptr* address, void* memory, unsigned flags)
      TENCACHE_EXCLUDES(mutex_);

  /// What the memory is to that device.
  HostMemoryKind kind(const void* memory, size_t bytes, int device) const TENCACHE_EXCLUDES(mutex_);
  bool is_registered(const DeviceRange& range, int device) const {
    return kind(reinterpret_cast<const void*>(range.address), range.bytes, device) ==
           HostMemoryKind::kRegistered;
  }
  /// One line for each registration.
  std::string leaks() const TENCACHE_EXCLUDES(mutex_);

 private:
  struct Registration {
    uint64_t end = 0;
    int device = 0;  // kAnyDevice where it is portable
  };

  bool overlaps(uint64_t begin, uint64_t end) const TENCACHE_REQUIRES(mutex_);

  const SimulatedDriverConfig config_;
  const SimulatedDevices& devices_;
  mutable Mutex mutex_;
  std::map<uint64_t, Registration> registrations_ TENCACHE_GUARDED_BY(mutex_);  // by first address
  uint64_t bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;
};

}  // namespace tencache
