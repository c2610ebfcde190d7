// SPDX-License-Identifier: Apache-2.0
//
// The run time's functions of devices, and versions. One table of properties describes a small GPU
// of compute capability 9.0; attributes are read out of it. Devices reach each other's memory where
// EMULATED_GPU_PEERS is 1, else they copy through the host. Any thread may call.
#include <cstdio>
#include <cstring>

#include "contexts.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

namespace {

cudaDeviceProp properties_of(int device) {
  cudaDeviceProp p = {};
  driver().cuDeviceGetName(p.name, sizeof p.name, device);
  driver().cuDeviceTotalMem(&p.totalGlobalMem, device);
  p.uuid.bytes[0] = 'e';
  p.uuid.bytes[15] = static_cast<char>(device + 1);
  p.major = 9;
  p.minor = 0;
  p.multiProcessorCount = 1;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = 2048;
  p.regsPerBlock = 65536;
  p.regsPerMultiprocessor = 65536;
  p.sharedMemPerBlock = 48 << 10;
  p.sharedMemPerBlockOptin = 227 << 10;
  p.sharedMemPerMultiprocessor = 228 << 10;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.totalConstMem = 65536;
  p.textureAlignment = 512;
  p.l2CacheSize = 50 << 20;
  p.memoryBusWidth = 5120;
  p.unifiedAddressing = 1;
  p.canMapHostMemory = 1;
  p.concurrentKernels = 1;
  p.asyncEngineCount = 2;
  p.streamPrioritiesSupported = 1;
  p.hostRegisterSupported = 1;
  p.canUseHostPointerForRegisteredMem = 1;
  p.pciBusID = device + 1;
  p.maxBlocksPerMultiProcessor = 32;
  return p;
}

using Properties = const cudaDeviceProp&;
struct Attribute {
  cudaDeviceAttr name;
  size_t (*value)(Properties);
};
template <auto kMember>
size_t member(Properties p) {
  return static_cast<size_t>(p.*kMember);
}
constexpr Attribute kAttributes[] = {
    {cudaDevAttrMaxThreadsPerBlock, member<&cudaDeviceProp::maxThreadsPerBlock>},
    {cudaDevAttrMaxBlockDimX, [](Properties p) { return size_t(p.maxThreadsDim[0]); }},
    {cudaDevAttrMaxBlockDimY, [](Properties p) { return size_t(p.maxThreadsDim[1]); }},
    {cudaDevAttrMaxBlockDimZ, [](Properties p) { return size_t(p.maxThreadsDim[2]); }},
    {cudaDevAttrMaxGridDimX, [](Properties p) { return size_t(p.maxGridSize[0]); }},
    {cudaDevAttrMaxGridDimY, [](Properties p) { return size_t(p.maxGridSize[1]); }},
    {cudaDevAttrMaxGridDimZ, [](Properties p) { return size_t(p.maxGridSize[2]); }},
    {cudaDevAttrMaxSharedMemoryPerBlock, member<&cudaDeviceProp::sharedMemPerBlock>},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, member<&cudaDeviceProp::sharedMemPerBlockOptin>},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor,
     member<&cudaDeviceProp::sharedMemPerMultiprocessor>},
    {cudaDevAttrMaxRegistersPerBlock, member<&cudaDeviceProp::regsPerBlock>},
    {cudaDevAttrMaxRegistersPerMultiprocessor, member<&cudaDeviceProp::regsPerMultiprocessor>},
    {cudaDevAttrTotalConstantMemory, member<&cudaDeviceProp::totalConstMem>},
    {cudaDevAttrWarpSize, member<&cudaDeviceProp::warpSize>},
    {cudaDevAttrMultiProcessorCount, member<&cudaDeviceProp::multiProcessorCount>},
    {cudaDevAttrMaxThreadsPerMultiProcessor, member<&cudaDeviceProp::maxThreadsPerMultiProcessor>},
    {cudaDevAttrMaxBlocksPerMultiprocessor, member<&cudaDeviceProp::maxBlocksPerMultiProcessor>},
    {cudaDevAttrTextureAlignment, member<&cudaDeviceProp::textureAlignment>},
    {cudaDevAttrL2CacheSize, member<&cudaDeviceProp::l2CacheSize>},
    {cudaDevAttrGlobalMemoryBusWidth, member<&cudaDeviceProp::memoryBusWidth>},
    {cudaDevAttrUnifiedAddressing, member<&cudaDeviceProp::unifiedAddressing>},
    {cudaDevAttrCanMapHostMemory, member<&cudaDeviceProp::canMapHostMemory>},
    {cudaDevAttrConcurrentKernels, member<&cudaDeviceProp::concurrentKernels>},
    {cudaDevAttrAsyncEngineCount, member<&cudaDeviceProp::asyncEngineCount>},
    {cudaDevAttrStreamPrioritiesSupported, member<&cudaDeviceProp::streamPrioritiesSupported>},
    {cudaDevAttrHostRegisterSupported, member<&cudaDeviceProp::hostRegisterSupported>},
    {cudaDevAttrCanUseHostPointerForRegisteredMem,
     member<&cudaDeviceProp::canUseHostPointerForRegisteredMem>},
    {cudaDevAttrComputeCapabilityMajor, member<&cudaDeviceProp::major>},
    {cudaDevAttrComputeCapabilityMinor, member<&cudaDeviceProp::minor>},
    {cudaDevAttrPciBusId, member<&cudaDeviceProp::pciBusID>},
};

}  // namespace

EMULATED_PUBLIC cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return note(cudaErrorInvalidValue);
  *count = driver().device_count;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaGetDevice(int* device) {
  if (device == nullptr) return note(cudaErrorInvalidValue);
  *device = current_device();
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaSetDevice(int device) {
  if (!has_device(device)) return note(cudaErrorInvalidDevice);
  return note(set_current_device(device));
}
EMULATED_PUBLIC cudaError_t cudaDeviceSynchronize() { return note(ready().cuCtxSynchronize()); }

EMULATED_PUBLIC cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (properties == nullptr) return note(cudaErrorInvalidValue);
  if (!has_device(device)) return note(cudaErrorInvalidDevice);
  *properties = properties_of(device);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                                   int device) {
  if (value == nullptr) return note(cudaErrorInvalidValue);
  if (!has_device(device)) return note(cudaErrorInvalidDevice);
  for (const Attribute& known : kAttributes) {
    if (known.name != attribute) continue;
    *value = static_cast<int>(known.value(properties_of(device)));
    return cudaSuccess;
  }
  return note(
      driver().cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), device));
}
EMULATED_PUBLIC cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (id == nullptr || length <= 0) return note(cudaErrorInvalidValue);
  if (!has_device(device)) return note(cudaErrorInvalidDevice);
  snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(device + 1));
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (can == nullptr) return note(cudaErrorInvalidValue);
  if (!has_device(device) || !has_device(peer)) return note(cudaErrorInvalidDevice);
  *can = has_peers() && device != peer ? 1 : 0;
  return cudaSuccess;
}
// What cudaMalloc gives is open to peers anyway. CUDA returns cudaErrorInvalidDevice for a peer
// whose memory cannot be reached.
EMULATED_PUBLIC cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return note(has_peers() && has_device(peer) ? cudaSuccess : cudaErrorInvalidDevice);
}

EMULATED_PUBLIC cudaError_t cudaDriverGetVersion(int* version) {
  return note(driver().cuDriverGetVersion(version));
}
EMULATED_PUBLIC cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return note(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned version, unsigned long long flags,
    cudaDriverEntryPointQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return note(cudaErrorInvalidValue);
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult result = driver().get(symbol, function, static_cast<int>(version), flags, &found);
  if (result != CUDA_SUCCESS) *function = nullptr;
  if (status == nullptr) return note(result);
  *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  // The absence of a symbol is an answer, not an error.
  return note(result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result);
}

// No profiler can be attached; without one the real functions do nothing either.
EMULATED_PUBLIC cudaError_t cudaProfilerStart() { return cudaSuccess; }
EMULATED_PUBLIC cudaError_t cudaProfilerStop() { return cudaSuccess; }
