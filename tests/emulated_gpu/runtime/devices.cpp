// SPDX-License-Identifier: Apache-2.0
//
// Devices, versions and errors. Properties tell of a small GPU of compute capability 9.0.
#include <cstdio>
#include <cstring>

#include "capture.h"
#include "driver_table.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

EMULATED_PUBLIC cudaError_t cudaGetDeviceCount(int* count) {
  *count = driver().device_count;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= driver().device_count) return note(cudaErrorInvalidDevice);
  want_device(device);
  return note(driver().cuCtxSetCurrent(context_of(device)));
}
EMULATED_PUBLIC cudaError_t cudaDriverGetVersion(int* version) {
  return note(driver().cuDriverGetVersion(version));
}
EMULATED_PUBLIC cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaGetLastError() { return take_last_error(); }
EMULATED_PUBLIC cudaError_t cudaPeekAtLastError() { return last_error(); }
EMULATED_PUBLIC const char* cudaGetErrorName(cudaError_t error) {
  const char* text = nullptr;
  driver().cuGetErrorName(static_cast<CUresult>(error), &text);
  return text != nullptr ? text : "unrecognized error code";
}
EMULATED_PUBLIC const char* cudaGetErrorString(cudaError_t error) {
  const char* text = nullptr;
  driver().cuGetErrorString(static_cast<CUresult>(error), &text);
  return text != nullptr ? text : "unrecognized error code";
}
EMULATED_PUBLIC cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  const Driver& d = driver();
  if (device < 0 || device >= d.device_count) return note(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  d.cuDeviceGetName(p->name, sizeof p->name, device);
  p->uuid.bytes[0] = 'e';
  p->uuid.bytes[15] = static_cast<char>(device + 1);
  d.cuDeviceTotalMem(&p->totalGlobalMem, device);
  p->major = 9;
  p->minor = 0;
  p->multiProcessorCount = 1;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->regsPerBlock = 65536;
  p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = 227 << 10;
  p->sharedMemPerMultiprocessor = 228 << 10;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 0x7fffffff;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->textureAlignment = 512;
  p->l2CacheSize = 50 << 20;
  p->memoryBusWidth = 5120;
  p->unifiedAddressing = 1;
  p->canMapHostMemory = 1;
  p->concurrentKernels = 1;
  p->asyncEngineCount = 2;
  p->streamPrioritiesSupported = 1;
  p->hostRegisterSupported = 1;
  p->canUseHostPointerForRegisteredMem = 1;
  p->pciBusID = device + 1;
  p->maxBlocksPerMultiProcessor = 32;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                                   int device) {
  cudaDeviceProp p;
  const cudaError_t found = cudaGetDeviceProperties(&p, device);
  if (found != cudaSuccess) return found;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxBlockDimX:
      *value = p.maxThreadsDim[0];
      break;
    case cudaDevAttrMaxGridDimX:
      *value = p.maxGridSize[0];
      break;
    case cudaDevAttrMaxGridDimY:
      *value = p.maxGridSize[1];
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(p.sharedMemPerBlock);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = p.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrL2CacheSize:
      *value = p.l2CacheSize;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrHostRegisterSupported:
      *value = 1;
      break;
    case cudaDevAttrConcurrentKernels:
      *value = 1;
      break;
    default:
      return note(
          driver().cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), device));
  }
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(device + 1));
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return refuse("peer access");
}
EMULATED_PUBLIC cudaError_t cudaDeviceSynchronize() {
  if (capture_count > 0) return note(cudaErrorStreamCaptureUnsupported);
  return note(ready().cuCtxSynchronize());
}
EMULATED_PUBLIC cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned version, unsigned long long flags,
    cudaDriverEntryPointQueryResult* status) {
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  driver().get(symbol, function, static_cast<int>(version), flags, &found);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaProfilerStart() { return cudaSuccess; }
EMULATED_PUBLIC cudaError_t cudaProfilerStop() { return cudaSuccess; }
