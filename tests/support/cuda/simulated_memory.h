// SPDX-License-Identifier: Apache-2.0
//
// SimulatedMemory: the device memory of the simulated driver. A reservation is inaccessible address
// space, a handle is a part of one memory file, and a mapping is that part mapped at its address.
// So a device address is an address of the process. The methods of the driver have its parameters.
// Other methods serve copy engines and kernels, which declare the memory they use while they use
// it.
//
// Invariants:
//   1. A mapping lies in one reservation, overlaps no other, and has the size of its handle.
//   2. A byte is accessible only while a mapping with access covers it; otherwise touching it is a
//      SIGSEGV. Access is a device's own: a device gets access to another one's memory only where
//      the config has peers, and each may get access to host memory.
//   3. A handle of device memory counts against the capacity of its device until it is released and
//      mapped nowhere.
//   4. Unmapping memory under a running access fails the context. The rest of that access finds
//      memory that belongs to nobody, instead of a SIGSEGV, until the address is mapped again or
//      given back.
//
// Limits of the simulation: the processor, and a callable that runs as a kernel of another device,
// can use device memory as a kernel does; only what they declare is checked. A fresh handle reads
// as zero. Threads: any; no lock is held while memory is copied.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "support/cuda/simulated_devices.h"
#include "support/cuda/simulated_driver_config.h"

namespace tencache {

class SimulatedMemory {
 public:
  SimulatedMemory(const SimulatedDriverConfig& config, const SimulatedDevices& devices,
                  StickyFailure& failure);
  ~SimulatedMemory();
  SimulatedMemory(const SimulatedMemory&) = delete;
  SimulatedMemory& operator=(const SimulatedMemory&) = delete;

  CUresult info(size_t* free_bytes, size_t* total_bytes) TENCACHE_EXCLUDES(mutex_);
  CUresult granularity(size_t* bytes, const CUmemAllocationProp* properties,
                       CUmemAllocationGranularity_flags option);
  CUresult reserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr hint,
                   unsigned long long flags) TENCACHE_EXCLUDES(mutex_);
  CUresult free_reservation(CUdeviceptr address, size_t bytes) TENCACHE_EXCLUDES(mutex_);
  CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes,
                  const CUmemAllocationProp* properties, unsigned long long flags)
      TENCACHE_EXCLUDES(mutex_);
  CUresult release(CUmemGenericAllocationHandle handle) TENCACHE_EXCLUDES(mutex_);
  CUresult map(CUdeviceptr address, size_t bytes, size_t offset,
               CUmemGenericAllocationHandle handle, unsigned long long flags)
      TENCACHE_EXCLUDES(mutex_);
  CUresult unmap(CUdeviceptr address, size_t bytes) TENCACHE_EXCLUDES(mutex_);
  CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* accesses,
                      size_t count) TENCACHE_EXCLUDES(mutex_);

  struct Place {
    bool is_reserved = false;    // the first byte lies in a reservation
    bool is_accessible = false;  // for that device, all of it
    bool is_host = false;        // the first byte is host memory
  };
  Place place_of(const DeviceRange& range, int device) const TENCACHE_EXCLUDES(mutex_);

  struct Mapped {
    CUdeviceptr address = 0;  // of the whole mapping
    uint64_t bytes = 0;
    int device = 0;
    bool is_host = false;  // then of no device
  };
  /// The mapping that covers the address, if any.
  std::optional<Mapped> mapped_at(CUdeviceptr address) const TENCACHE_EXCLUDES(mutex_);

  /// Declares that the device works on the ranges from now to end_access(). Returns the number for
  /// end_access(), or 0 when the ranges are not all accessible for the device.
  uint64_t begin_access(std::span<const DeviceRange> ranges, int device) TENCACHE_EXCLUDES(mutex_);
  void end_access(uint64_t access) TENCACHE_EXCLUDES(mutex_);

  /// One line for each reservation, mapping and handle.
  std::string leaks() const TENCACHE_EXCLUDES(mutex_);

 private:
  struct Allocation {
    uint64_t offset = 0;  // in the memory file; never reused
    uint64_t bytes = 0;
    int device = 0;
    bool is_host = false;
    bool is_released = false;
    uint64_t mappings = 0;
  };
  struct Mapping {
    uint64_t bytes = 0;
    CUmemGenericAllocationHandle handle = 0;
    std::vector<int> device_access;  // by device
    int host_access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  };
  using Mappings = std::map<CUdeviceptr, Mapping>;
  struct Access {
    uint64_t number;
    std::vector<DeviceRange> ranges;
  };

  CUresult check_properties(const CUmemAllocationProp* properties) const;
  bool is_reserved(CUdeviceptr address, uint64_t bytes) const TENCACHE_REQUIRES(mutex_);
  // Whether whole mappings of one reservation cover the range without a gap.
  bool is_covered(CUdeviceptr address, uint64_t bytes) const TENCACHE_REQUIRES(mutex_);
  bool is_accessible(const DeviceRange& range, int device) const TENCACHE_REQUIRES(mutex_);
  bool is_in_use(CUdeviceptr address, uint64_t bytes) const TENCACHE_REQUIRES(mutex_);
  CUresult check_access(CUdeviceptr address, uint64_t bytes, const CUmemAccessDesc& access) const
      TENCACHE_REQUIRES(mutex_);
  Mappings::const_iterator find_mapping(CUdeviceptr address) const TENCACHE_REQUIRES(mutex_);
  void protect(CUdeviceptr address, const Mapping& mapping, bool has_lost)
      TENCACHE_REQUIRES(mutex_);
  void drop_unused(CUmemGenericAllocationHandle handle) TENCACHE_REQUIRES(mutex_);

  const SimulatedDriverConfig config_;
  const SimulatedDevices& devices_;
  StickyFailure& failure_;
  const int file_;

  mutable Mutex mutex_;
  std::map<CUdeviceptr, uint64_t> reservations_ TENCACHE_GUARDED_BY(mutex_);  // address to bytes
  Mappings mappings_ TENCACHE_GUARDED_BY(mutex_);
  std::map<CUmemGenericAllocationHandle, Allocation> allocations_ TENCACHE_GUARDED_BY(mutex_);
  std::vector<uint64_t> used_bytes_ TENCACHE_GUARDED_BY(mutex_);  // by device
  uint64_t file_bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;
  CUmemGenericAllocationHandle last_handle_ TENCACHE_GUARDED_BY(mutex_) = 0;
  std::vector<Access> accesses_ TENCACHE_GUARDED_BY(mutex_);  // running
  uint64_t last_access_ TENCACHE_GUARDED_BY(mutex_) = 0;
};

}  // namespace tencache
