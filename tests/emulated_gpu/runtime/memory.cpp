// SPDX-License-Identifier: Apache-2.0
//
// Memory of devices and of the host, copies and memset. A mutex guards the tables of what was
// allocated.
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>

#include "capture.h"
#include "driver_table.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

namespace {
std::mutex mutex;
struct Block {
  size_t bytes;
  CUmemGenericAllocationHandle handle;
};
std::map<CUdeviceptr, Block> blocks;  // of cudaMalloc
std::map<void*, size_t> host_blocks;  // of cudaHostAlloc

struct HostCopy {
  void* target;
  const void* source;
  size_t bytes;
};
CUresult copy_now(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                  CUstream stream);
CUresult copy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
              CUstream stream) {
  return queue(stream, [=](CUstream in) { return copy_now(target, source, bytes, kind, in); });
}
CUresult copy_now(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                  CUstream stream) {
  const Driver& d = ready();
  if (kind == cudaMemcpyDefault) {
    const bool to = d.is_device(target), from = d.is_device(source);
    kind = to ? (from ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
              : (from ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  }
  if (bytes == 0) return CUDA_SUCCESS;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return d.cuMemcpyHtoDAsync(address(target), source, bytes, stream);
    case cudaMemcpyDeviceToHost:
      return d.cuMemcpyDtoHAsync(target, address(source), bytes, stream);
    case cudaMemcpyDeviceToDevice:
      return d.cuMemcpyDtoDAsync(address(target), address(source), bytes, stream);
    default: {
      auto* job = new HostCopy{target, source, bytes};
      return d.cuLaunchHostFunc(
          stream,
          [](void* data) {
            auto* todo = static_cast<HostCopy*>(data);
            memmove(todo->target, todo->source, todo->bytes);
            delete todo;
          },
          job);
    }
  }
}
}  // namespace

EMULATED_PUBLIC cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return note(ready().cuMemGetInfo(free, total));
}
EMULATED_PUBLIC cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const Driver& d = ready();
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  constexpr size_t kGranule = 2 << 20;
  bytes = (bytes + kGranule - 1) / kGranule * kGranule;
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location = {CU_MEM_LOCATION_TYPE_DEVICE, current_device()};
  Block block = {bytes, 0};
  CUresult result = d.cuMemCreate(&block.handle, bytes, &p, 0);
  if (result != CUDA_SUCCESS) return note(result);
  CUdeviceptr at = 0;
  result = d.cuMemAddressReserve(&at, bytes, 0, 0, 0);
  if (result == CUDA_SUCCESS) result = d.cuMemMap(at, bytes, 0, block.handle, 0);
  CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (result == CUDA_SUCCESS) result = d.cuMemSetAccess(at, bytes, &access, 1);
  if (result != CUDA_SUCCESS) return note(result);
  const std::lock_guard lock(mutex);
  blocks[at] = block;
  *pointer = reinterpret_cast<void*>(at);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaFree(void* pointer) {
  const Driver& d = ready();
  if (pointer == nullptr) return cudaSuccess;
  Block block;
  {
    const std::lock_guard lock(mutex);
    const auto found = blocks.find(address(pointer));
    if (found == blocks.end()) return note(cudaErrorInvalidValue);
    block = found->second;
    blocks.erase(found);
  }
  d.cuCtxSynchronize();  // as the real one does
  d.cuMemUnmap(address(pointer), block.bytes);
  d.cuMemRelease(block.handle);
  return note(d.cuMemAddressFree(address(pointer), block.bytes));
}
EMULATED_PUBLIC cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  const Driver& d = ready();
  const size_t size = (bytes + 4095) / 4096 * 4096;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return note(cudaErrorMemoryAllocation);
  const CUresult result = d.cuMemHostRegister(memory, size, CU_MEMHOSTREGISTER_PORTABLE);
  if (result != CUDA_SUCCESS) return munmap(memory, size), note(result);
  const std::lock_guard lock(mutex);
  host_blocks[memory] = size;
  *pointer = memory;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaFreeHost(void* pointer) {
  const Driver& d = ready();
  if (pointer == nullptr) return cudaSuccess;
  size_t bytes = 0;
  {
    const std::lock_guard lock(mutex);
    const auto found = host_blocks.find(pointer);
    if (found == host_blocks.end()) return note(cudaErrorInvalidValue);
    bytes = found->second;
    host_blocks.erase(found);
  }
  d.cuCtxSynchronize();
  const CUresult result = d.cuMemHostUnregister(pointer);
  munmap(pointer, bytes);
  return note(result);
}
EMULATED_PUBLIC cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return note(ready().cuMemHostRegister(pointer, bytes, flags & 0xb));
}
EMULATED_PUBLIC cudaError_t cudaHostUnregister(void* pointer) {
  return note(ready().cuMemHostUnregister(pointer));
}
EMULATED_PUBLIC cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a,
                                                     const void* pointer) {
  const Driver& d = driver();
  memset(a, 0, sizeof *a);
  if (d.is_device(pointer)) {
    a->type = cudaMemoryTypeDevice;
    a->device = d.device_of(pointer) < 0 ? 0 : d.device_of(pointer);
    a->devicePointer = const_cast<void*>(pointer);
  } else if (d.is_registered(pointer)) {
    a->type = cudaMemoryTypeHost;
    a->devicePointer = a->hostPointer = const_cast<void*>(pointer);
  } else {
    a->type = cudaMemoryTypeUnregistered;
    a->device = -2;
    a->hostPointer = const_cast<void*>(pointer);
  }
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes,
                                            cudaMemcpyKind kind, cudaStream_t stream) {
  return note(copy(target, source, bytes, kind, stream));
}
EMULATED_PUBLIC cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes,
                                       cudaMemcpyKind kind) {
  const CUresult result = copy(target, source, bytes, kind, nullptr);
  return note(result == CUDA_SUCCESS ? driver().cuStreamSynchronize(nullptr) : result);
}
EMULATED_PUBLIC cudaError_t cudaMemcpyPeerAsync(void* target, int target_device, const void* source,
                                                int source_device, size_t bytes,
                                                cudaStream_t stream) {
  return note(queue(stream, [=](CUstream in) {
    return ready().cuMemcpyPeerAsync(address(target), context_of(target_device), address(source),
                                     context_of(source_device), bytes, in);
  }));
}
EMULATED_PUBLIC cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                                              size_t source_pitch, size_t width, size_t height,
                                              cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    const CUresult result =
        copy(static_cast<char*>(target) + row * target_pitch,
             static_cast<const char*>(source) + row * source_pitch, width, kind, stream);
    if (result != CUDA_SUCCESS) return note(result);
  }
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes,
                                            cudaStream_t stream) {
  return note(queue(stream, [=](CUstream in) {
    return ready().cuMemsetD8Async(address(target), static_cast<unsigned char>(value), bytes, in);
  }));
}
EMULATED_PUBLIC cudaError_t cudaMemset(void* target, int value, size_t bytes) {
  return cudaMemsetAsync(target, value, bytes, nullptr);
}
// Right although nothing is copied: only kernels read a symbol, and each launch by name is refused.
EMULATED_PUBLIC cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t,
                                               cudaMemcpyKind) {
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaGetSymbolAddress(void**, const void*) {
  return refuse("cudaGetSymbolAddress");
}

EMULATED_PUBLIC cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, 0);
}
