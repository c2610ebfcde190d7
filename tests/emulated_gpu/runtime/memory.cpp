// SPDX-License-Identifier: Apache-2.0
//
// The run time's memory of devices and of the host. A block of cudaMalloc is one handle, mapped
// into a reservation of its own; a block of cudaHostAlloc is mapped and registered. Each table owns
// its blocks, under a mutex of its own. Any thread may call.
#include <sys/mman.h>

#include <map>
#include <mutex>
#include <optional>

#include "contexts.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

namespace {

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

template <typename Block>
class Blocks {
 public:
  void add(const void* pointer, Block block) {
    const std::lock_guard lock(mutex_);
    blocks_[pointer] = block;
  }
  // Returns nothing where no block begins there.
  std::optional<Block> take(const void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(pointer);
    if (found == blocks_.end()) return std::nullopt;
    const Block block = found->second;
    blocks_.erase(found);
    return block;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, Block> blocks_;
};

struct DeviceBlock {
  int device = 0;
  size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
};
struct HostBlock {
  size_t bytes = 0;
};
Blocks<DeviceBlock>& device_blocks() {
  static auto* const made = new Blocks<DeviceBlock>;
  return *made;
}
Blocks<HostBlock>& host_blocks() {
  static auto* const made = new Blocks<HostBlock>;
  return *made;
}

CUresult grant_access(CUdeviceptr place, size_t bytes, const CUmemLocation& user) {
  const CUmemAccessDesc access = {user, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return driver().cuMemSetAccess(place, bytes, &access, 1);
}

// Maps the block's handle where the device and its peers may use it. On failure nothing is left
// mapped or reserved.
CUresult map(const DeviceBlock& block, const CUmemLocation& location, CUdeviceptr* place) {
  const Driver& d = driver();
  CUresult result = d.cuMemAddressReserve(place, block.bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS) return result;
  result = d.cuMemMap(*place, block.bytes, 0, block.handle, 0);
  if (result == CUDA_SUCCESS) {
    CUmemLocation user = location;
    result = grant_access(*place, block.bytes, user);
    for (int device = 0; result == CUDA_SUCCESS && has_peers() && has_device(device); ++device) {
      user.id = device;
      result = grant_access(*place, block.bytes, user);
    }
    if (result == CUDA_SUCCESS) return result;
    d.cuMemUnmap(*place, block.bytes);
  }
  d.cuMemAddressFree(*place, block.bytes);
  return result;
}

CUresult allocate(size_t bytes, void** pointer) {
  const Driver& d = ready();
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = current_device();
  size_t granule_bytes = 0;
  CUresult result = d.cuMemGetAllocationGranularity(&granule_bytes, &properties,
                                                    CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return result;
  DeviceBlock block = {properties.location.id, round_up(bytes, granule_bytes), 0};
  result = d.cuMemCreate(&block.handle, block.bytes, &properties, 0);
  if (result != CUDA_SUCCESS) return result;
  CUdeviceptr place = 0;
  result = map(block, properties.location, &place);
  if (result != CUDA_SUCCESS) {
    d.cuMemRelease(block.handle);
    return result;
  }
  *pointer = reinterpret_cast<void*>(place);
  device_blocks().add(*pointer, block);
  return CUDA_SUCCESS;
}

}  // namespace

EMULATED_PUBLIC cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return note(ready().cuMemGetInfo(free, total));
}
EMULATED_PUBLIC cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (pointer == nullptr) return note(cudaErrorInvalidValue);
  *pointer = nullptr;
  const Driver& d = ready();
  if (const CUresult error = d.check_unsafe(); error != CUDA_SUCCESS) return note(error);
  return bytes == 0 ? cudaSuccess : note(allocate(bytes, pointer));
}
EMULATED_PUBLIC cudaError_t cudaFree(void* pointer) {
  const Driver& d = ready();
  if (pointer == nullptr) return cudaSuccess;
  if (const CUresult error = d.check_unsafe(); error != CUDA_SUCCESS) return note(error);
  const std::optional<DeviceBlock> block = device_blocks().take(pointer);
  if (!block.has_value()) return note(cudaErrorInvalidValue);
  // This waits for the memory's device, as the real cudaFree does. Where the context failed the
  // driver keeps the memory, and the block is forgotten all the same.
  const CUresult waited = synchronize_device(block->device);
  const CUresult results[] = {waited, d.cuMemUnmap(address(pointer), block->bytes),
                              d.cuMemRelease(block->handle),
                              d.cuMemAddressFree(address(pointer), block->bytes)};
  for (const CUresult result : results) {
    if (result != CUDA_SUCCESS) return note(result);
  }
  return cudaSuccess;
}

EMULATED_PUBLIC cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  constexpr unsigned kFlags =
      cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
  if (pointer == nullptr || (flags & ~kFlags) != 0) return note(cudaErrorInvalidValue);
  *pointer = nullptr;
  const Driver& d = ready();
  if (const CUresult error = d.check_unsafe(); error != CUDA_SUCCESS) return note(error);
  if (bytes == 0) return cudaSuccess;
  const size_t size = round_up(bytes, 4096);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return note(cudaErrorMemoryAllocation);
  const CUresult result = d.cuMemHostRegister(memory, size, CU_MEMHOSTREGISTER_PORTABLE);
  if (result != CUDA_SUCCESS) {
    munmap(memory, size);
    return note(result);
  }
  host_blocks().add(memory, {size});
  *pointer = memory;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}
EMULATED_PUBLIC cudaError_t cudaFreeHost(void* pointer) {
  const Driver& d = ready();
  if (pointer == nullptr) return cudaSuccess;
  if (const CUresult error = d.check_unsafe(); error != CUDA_SUCCESS) return note(error);
  const std::optional<HostBlock> block = host_blocks().take(pointer);
  if (!block.has_value()) return note(cudaErrorInvalidValue);
  const CUresult waited = synchronize_devices();  // any device may be about to touch it
  const CUresult result = d.cuMemHostUnregister(pointer);
  munmap(pointer, block->bytes);
  return note(waited != CUDA_SUCCESS ? waited : result);
}
EMULATED_PUBLIC cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  // The other flags are for I/O memory and for memory that is only read.
  constexpr unsigned kFlags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  if ((flags & ~kFlags) != 0) return refuse("cudaHostRegister of I/O or read-only memory");
  // With unified addressing the memory is always portable.
  return note(ready().cuMemHostRegister(pointer, bytes, flags | CU_MEMHOSTREGISTER_PORTABLE));
}
EMULATED_PUBLIC cudaError_t cudaHostUnregister(void* pointer) {
  return note(ready().cuMemHostUnregister(pointer));
}

EMULATED_PUBLIC cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                                     const void* pointer) {
  if (attributes == nullptr) return note(cudaErrorInvalidValue);
  const Driver& d = driver();
  *attributes = {};
  void* const address = const_cast<void*>(pointer);
  if (const int device = d.device_of(pointer); device >= 0) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = device;
    attributes->devicePointer = address;
  } else if (d.is_registered(pointer)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->devicePointer = attributes->hostPointer = address;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = address;
  }
  return cudaSuccess;
}
