// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/host_registrations.h"

#include <cstdio>

#include "base/units.h"

namespace tencache {
namespace {

constexpr unsigned kFlags =
    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;

}  // namespace

bool HostRegistrations::overlaps(uint64_t begin, uint64_t end) const {
  // The first registration that begins behind the range.
  const auto next = registrations_.lower_bound(end);
  return next != registrations_.begin() && std::prev(next)->second.end > begin;
}

CUresult HostRegistrations::add(void* memory, size_t bytes, unsigned flags) {
  if (memory == nullptr || bytes == 0 || (flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto begin = reinterpret_cast<uint64_t>(memory);
  MutexLock lock(mutex_);
  if (overlaps(begin, begin + bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (bytes > config_.registered_bytes_per_call_max ||
      bytes > config_.registered_bytes_max - bytes_) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const bool is_portable = (flags & CU_MEMHOSTREGISTER_PORTABLE) != 0;
  registrations_[begin] = {begin + bytes, is_portable ? kAnyDevice : devices_.current_device()};
  bytes_ += bytes;
  return CUDA_SUCCESS;
}

CUresult HostRegistrations::remove(void* memory) {
  MutexLock lock(mutex_);
  const auto found = registrations_.find(reinterpret_cast<uint64_t>(memory));
  if (found == registrations_.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  bytes_ -= found->second.end - found->first;
  registrations_.erase(found);
  return CUDA_SUCCESS;
}

CUresult HostRegistrations::device_pointer(CUdeviceptr* address, void* memory, unsigned flags) {
  if (address == nullptr || flags != 0 ||
      kind(memory, 1, devices_.current_device()) != HostMemoryKind::kRegistered) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}

HostMemoryKind HostRegistrations::kind(const void* memory, size_t bytes, int device) const {
  const auto begin = reinterpret_cast<uint64_t>(memory);
  const uint64_t end = begin + bytes;
  MutexLock lock(mutex_);
  if (!overlaps(begin, end)) return HostMemoryKind::kPageable;
  const auto next = registrations_.upper_bound(begin);
  if (next == registrations_.begin()) return HostMemoryKind::kTorn;
  const Registration& registration = std::prev(next)->second;
  if (registration.end < end) return HostMemoryKind::kTorn;
  const bool is_its =
      device == kAnyDevice || registration.device == kAnyDevice || registration.device == device;
  return is_its ? HostMemoryKind::kRegistered : HostMemoryKind::kPageable;
}

std::string HostRegistrations::leaks() const {
  MutexLock lock(mutex_);
  std::string text;
  for (const auto& [begin, registration] : registrations_) {
    char line[96];
    snprintf(line, sizeof(line), "registration 0x%llx of %s\n",
             static_cast<unsigned long long>(begin),
             format_bytes(registration.end - begin).c_str());
    text += line;
  }
  return text;
}

}  // namespace tencache
