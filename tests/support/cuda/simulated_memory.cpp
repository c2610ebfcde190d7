// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/simulated_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "support/cuda/handles.h"

namespace tencache {
namespace {

constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// Reserves at the hint where that is free, else anywhere. Returns null when there is no room.
void* reserve_aligned(uint64_t bytes, uint64_t alignment, CUdeviceptr hint) {
  if (hint != 0 && hint % alignment == 0) {
    void* memory = mmap(pointer(hint), bytes, PROT_NONE, kReserved | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory != MAP_FAILED) return memory;
  }
  void* memory = mmap(nullptr, bytes + alignment, PROT_NONE, kReserved, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(memory);
  const uint64_t place = reinterpret_cast<uint64_t>(memory);
  const uint64_t before = round_up(place, alignment) - place;
  if (before > 0) munmap(begin, before);
  if (before < alignment) munmap(begin + before + bytes, alignment - before);
  return begin + before;
}

int protection(int access) {
  switch (access) {
    case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
      return PROT_READ | PROT_WRITE;
    case CU_MEM_ACCESS_FLAGS_PROT_READ:
      return PROT_READ;
    default:
      return PROT_NONE;
  }
}

bool is_host_location(CUmemLocationType type) { return type == CU_MEM_LOCATION_TYPE_HOST_NUMA; }

bool overlaps(const DeviceRange& range, CUdeviceptr address, uint64_t bytes) {
  return range.address < address + bytes && address < range.address + range.bytes;
}

}  // namespace

SimulatedMemory::SimulatedMemory(const SimulatedDriverConfig& config,
                                 const SimulatedDevices& devices, StickyFailure& failure)
    : config_(config),
      devices_(devices),
      failure_(failure),
      file_(memfd_create("tencache simulated device", MFD_CLOEXEC)),
      used_bytes_(static_cast<size_t>(config.device_count)) {
  TENCACHE_CHECK(file_ >= 0, "no memory file for a simulated device");
  TENCACHE_CHECK(std::has_single_bit(config.granularity_bytes));
  TENCACHE_CHECK(config.granularity_bytes % kPageBytes == 0);
}

SimulatedMemory::~SimulatedMemory() {
  for (const auto& [address, bytes] : reservations_) munmap(pointer(address), bytes);
  close(file_);
}

CUresult SimulatedMemory::info(size_t* free_bytes, size_t* total_bytes) {
  if (free_bytes == nullptr || total_bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto device = static_cast<size_t>(devices_.current_device());
  MutexLock lock(mutex_);
  *free_bytes = config_.capacity_bytes - used_bytes_[device];
  *total_bytes = config_.capacity_bytes;
  return CUDA_SUCCESS;
}

CUresult SimulatedMemory::check_properties(const CUmemAllocationProp* properties) const {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (properties->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return devices_.has_device(properties->location.id) ? CUDA_SUCCESS
                                                          : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA: {
      if (!config_.has_host_numa_handles) return CUDA_ERROR_NOT_SUPPORTED;
      // Node 0 stands for the one node of a machine without NUMA.
      const bool is_node = properties->location.id == std::max(config_.host_numa_id, 0);
      const bool is_private = properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE;
      return is_node && is_private ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_MEM_LOCATION_TYPE_HOST:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult SimulatedMemory::granularity(size_t* bytes, const CUmemAllocationProp* properties,
                                      CUmemAllocationGranularity_flags option) {
  if (bytes == nullptr || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                           option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = check_properties(properties);
  if (result == CUDA_SUCCESS) *bytes = config_.granularity_bytes;
  return result;
}

CUresult SimulatedMemory::reserve(CUdeviceptr* address, size_t bytes, size_t alignment,
                                  CUdeviceptr hint, unsigned long long flags) {
  if (address == nullptr || bytes == 0 || bytes % kPageBytes != 0 || flags != 0 ||
      (alignment != 0 && !std::has_single_bit(alignment))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  void* memory =
      reserve_aligned(bytes, std::max<uint64_t>(alignment, config_.granularity_bytes), hint);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(memory);
  MutexLock lock(mutex_);
  reservations_[*address] = bytes;
  return CUDA_SUCCESS;
}

CUresult SimulatedMemory::free_reservation(CUdeviceptr address, size_t bytes) {
  MutexLock lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapping = mappings_.lower_bound(address);
  if (mapping != mappings_.end() && mapping->first < address + bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Accesses that were doomed by an unmapping may still run there. So such addresses are never
  // given back; otherwise anybody's next mmap could get them.
  if (!is_in_use(address, bytes)) munmap(pointer(address), bytes);
  reservations_.erase(found);
  return CUDA_SUCCESS;
}

CUresult SimulatedMemory::create(CUmemGenericAllocationHandle* handle, size_t bytes,
                                 const CUmemAllocationProp* properties, unsigned long long flags) {
  if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = check_properties(properties);
  if (result != CUDA_SUCCESS) return result;
  if (bytes == 0 || bytes % config_.granularity_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool is_host = is_host_location(properties->location.type);
  const int device = is_host ? 0 : properties->location.id;
  MutexLock lock(mutex_);
  uint64_t& used_bytes = used_bytes_[static_cast<size_t>(device)];
  if (!is_host && bytes > config_.capacity_bytes - used_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  if (ftruncate(file_, static_cast<off_t>(file_bytes_ + bytes)) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!is_host) used_bytes += bytes;
  *handle = ++last_handle_;
  allocations_[*handle] = {
      .offset = file_bytes_, .bytes = bytes, .device = device, .is_host = is_host};
  file_bytes_ += bytes;
  return CUDA_SUCCESS;
}

CUresult SimulatedMemory::release(CUmemGenericAllocationHandle handle) {
  MutexLock lock(mutex_);
  const auto found = allocations_.find(handle);
  if (found == allocations_.end() || found->second.is_released) return CUDA_ERROR_INVALID_VALUE;
  found->second.is_released = true;
  drop_unused(handle);
  return CUDA_SUCCESS;
}

void SimulatedMemory::drop_unused(CUmemGenericAllocationHandle handle) {
  const auto found = allocations_.find(handle);
  const Allocation& allocation = found->second;
  if (!allocation.is_released || allocation.mappings > 0) return;
  if (!allocation.is_host) used_bytes_[static_cast<size_t>(allocation.device)] -= allocation.bytes;
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(allocation.offset), static_cast<off_t>(allocation.bytes));
  allocations_.erase(found);
}

CUresult SimulatedMemory::map(CUdeviceptr address, size_t bytes, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags) {
  MutexLock lock(mutex_);
  const auto found = allocations_.find(handle);
  if (found == allocations_.end() || found->second.is_released || found->second.bytes != bytes ||
      offset != 0 || flags != 0 || address % config_.granularity_bytes != 0 ||
      !is_reserved(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto next = mappings_.lower_bound(address);
  const bool is_taken = (next != mappings_.end() && next->first < address + bytes) ||
                        (next != mappings_.begin() &&
                         std::prev(next)->first + std::prev(next)->second.bytes > address);
  if (is_taken) return CUDA_ERROR_INVALID_VALUE;
  void* memory = mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file_,
                      static_cast<off_t>(found->second.offset));
  TENCACHE_CHECK(memory == pointer(address), "a handle of %zu bytes cannot be mapped", bytes);
  ++found->second.mappings;
  mappings_[address] = {
      .bytes = bytes,
      .handle = handle,
      .device_access = std::vector<int>(static_cast<size_t>(config_.device_count))};
  return CUDA_SUCCESS;
}

CUresult SimulatedMemory::unmap(CUdeviceptr address, size_t bytes) {
  MutexLock lock(mutex_);
  if (!is_covered(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto first = mappings_.find(address);
  auto end = first;
  std::vector<CUmemGenericAllocationHandle> handles;
  for (; end != mappings_.end() && end->first < address + bytes; ++end) {
    const auto& [begin, mapping] = *end;
    void* memory = nullptr;
    if (is_in_use(begin, mapping.bytes)) {
      failure_.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
      // With libc's mmap, ThreadSanitizer would take the mapping for a write and report a race with
      // the access. The race is real, but the test should see the context's failure.
      memory = reinterpret_cast<void*>(syscall(
          SYS_mmap, begin, mapping.bytes, PROT_READ | PROT_WRITE, kReserved | MAP_FIXED, -1, 0));
    } else {
      memory = mmap(pointer(begin), mapping.bytes, PROT_NONE, kReserved | MAP_FIXED, -1, 0);
    }
    TENCACHE_CHECK(memory == pointer(begin), "%llu bytes cannot be unmapped",
                   static_cast<unsigned long long>(mapping.bytes));
    --allocations_[mapping.handle].mappings;
    handles.push_back(mapping.handle);
  }
  mappings_.erase(first, end);
  for (const CUmemGenericAllocationHandle handle : handles) {
    if (allocations_.contains(handle)) drop_unused(handle);
  }
  return CUDA_SUCCESS;
}

CUresult SimulatedMemory::check_access(CUdeviceptr address, uint64_t bytes,
                                       const CUmemAccessDesc& access) const {
  if (access.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
      access.flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
      access.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool is_device = access.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!is_device && !is_host_location(access.location.type)) return CUDA_ERROR_INVALID_VALUE;
  if (is_device && !devices_.has_device(access.location.id)) return CUDA_ERROR_INVALID_DEVICE;
  // The processor reaches host memory only. A device also reaches its own memory and that of its
  // peers.
  for (auto at = mappings_.find(address); at != mappings_.end() && at->first < address + bytes;
       ++at) {
    const Allocation& allocation = allocations_.at(at->second.handle);
    if (allocation.is_host) continue;
    if (!is_device) return CUDA_ERROR_INVALID_VALUE;
    if (allocation.device != access.location.id && !devices_.has_peers()) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult SimulatedMemory::set_access(CUdeviceptr address, size_t bytes,
                                     const CUmemAccessDesc* accesses, size_t count) {
  if (accesses == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(mutex_);
  if (!is_covered(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t index = 0; index < count; ++index) {
    const CUresult result = check_access(address, bytes, accesses[index]);
    if (result != CUDA_SUCCESS) return result;
  }
  for (auto at = mappings_.find(address); at != mappings_.end() && at->first < address + bytes;
       ++at) {
    bool has_lost = false;
    for (size_t index = 0; index < count; ++index) {
      const auto& [location, flags] = accesses[index];
      if (is_host_location(location.type)) {
        at->second.host_access = flags;
        continue;
      }
      int& access = at->second.device_access[static_cast<size_t>(location.id)];
      has_lost |= flags < access;
      access = flags;
    }
    protect(at->first, at->second, has_lost);
  }
  return CUDA_SUCCESS;
}

void SimulatedMemory::protect(CUdeviceptr address, const Mapping& mapping, bool has_lost) {
  if (has_lost && is_in_use(address, mapping.bytes)) {
    // As with unmapped memory, the access is doomed but must not end the process.
    failure_.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
    return;
  }
  const int rights =
      protection(std::ranges::max(mapping.device_access)) | protection(mapping.host_access);
  TENCACHE_CHECK(mprotect(pointer(address), mapping.bytes, rights) == 0);
}

bool SimulatedMemory::is_reserved(CUdeviceptr address, uint64_t bytes) const {
  const auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return false;
  const auto& [begin, reserved_bytes] = *std::prev(next);
  return address - begin < reserved_bytes && bytes <= reserved_bytes - (address - begin);
}

SimulatedMemory::Mappings::const_iterator SimulatedMemory::find_mapping(CUdeviceptr address) const {
  const auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return mappings_.end();
  const auto found = std::prev(next);
  return address - found->first < found->second.bytes ? found : mappings_.end();
}

bool SimulatedMemory::is_covered(CUdeviceptr address, uint64_t bytes) const {
  if (bytes == 0 || !is_reserved(address, bytes)) return false;
  CUdeviceptr at = address;
  for (auto mapping = mappings_.find(address); mapping != mappings_.end() && at < address + bytes;
       ++mapping) {
    if (mapping->first != at) return false;
    at += mapping->second.bytes;
  }
  return at == address + bytes;
}

bool SimulatedMemory::is_accessible(const DeviceRange& range, int device) const {
  const CUdeviceptr end = range.address + range.bytes;
  CUdeviceptr at = range.address;
  if (end < at) return false;
  for (auto mapping = find_mapping(at); at < end; ++mapping) {
    if (mapping == mappings_.end() || mapping->first > at) return false;
    const std::vector<int>& access = mapping->second.device_access;
    const int rights = protection(device == kAnyDevice ? std::ranges::max(access)
                                                       : access[static_cast<size_t>(device)]);
    if ((rights & (range.is_written ? PROT_WRITE : PROT_READ)) == 0) return false;
    at = mapping->first + mapping->second.bytes;
  }
  return true;
}

bool SimulatedMemory::is_in_use(CUdeviceptr address, uint64_t bytes) const {
  for (const Access& access : accesses_) {
    for (const DeviceRange& range : access.ranges) {
      if (overlaps(range, address, bytes)) return true;
    }
  }
  return false;
}

SimulatedMemory::Place SimulatedMemory::place_of(const DeviceRange& range, int device) const {
  MutexLock lock(mutex_);
  const auto mapping = find_mapping(range.address);
  return {.is_reserved = is_reserved(range.address, 1),
          .is_accessible = is_accessible(range, device),
          .is_host = mapping != mappings_.end() && allocations_.at(mapping->second.handle).is_host};
}

std::optional<SimulatedMemory::Mapped> SimulatedMemory::mapped_at(CUdeviceptr address) const {
  MutexLock lock(mutex_);
  const auto found = find_mapping(address);
  if (found == mappings_.end()) return std::nullopt;
  const Allocation& allocation = allocations_.at(found->second.handle);
  return Mapped{found->first, found->second.bytes, allocation.device, allocation.is_host};
}

uint64_t SimulatedMemory::begin_access(std::span<const DeviceRange> ranges, int device) {
  MutexLock lock(mutex_);
  for (const DeviceRange& range : ranges) {
    if (!is_accessible(range, device)) return 0;
  }
  accesses_.push_back({++last_access_, {ranges.begin(), ranges.end()}});
  return last_access_;
}

void SimulatedMemory::end_access(uint64_t number) {
  MutexLock lock(mutex_);
  std::erase_if(accesses_, [number](const Access& access) { return access.number == number; });
}

std::string SimulatedMemory::leaks() const {
  MutexLock lock(mutex_);
  std::string text;
  const auto add = [&text](const char* what, uint64_t number, uint64_t bytes) {
    char line[96];
    snprintf(line, sizeof(line), "%s 0x%llx of %s\n", what, static_cast<unsigned long long>(number),
             format_bytes(bytes).c_str());
    text += line;
  };
  for (const auto& [address, bytes] : reservations_) add("reservation", address, bytes);
  for (const auto& [address, mapping] : mappings_) add("mapping", address, mapping.bytes);
  for (const auto& [handle, allocation] : allocations_) {
    // A released handle lives on through its mappings, which have lines of their own.
    if (!allocation.is_released) add("handle", handle, allocation.bytes);
  }
  return text;
}

}  // namespace tencache
