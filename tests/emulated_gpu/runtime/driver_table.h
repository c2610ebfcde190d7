// SPDX-License-Identifier: Apache-2.0
//
// The functions of libcuda.so.1 that the run time calls, found as the real run time finds them, so
// that a preloaded launch guard stands before them too. The table is made at the first call and
// lives for ever; a missing function ends the process with its name. Any thread may call.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "emulated_gpu.h"

#define EMULATED_PUBLIC extern "C" __attribute__((visibility("default")))

namespace emulated_gpu::runtime {

// clang-format would indent each line more than the one before.
// clang-format off
#define EMULATED_DRIVER(X) \
  X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName) \
  X(cuDeviceTotalMem) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuCtxGetCurrent) \
  X(cuDevicePrimaryCtxGetState) X(cuCtxSetCurrent) X(cuCtxPushCurrent) X(cuCtxPopCurrent) \
  X(cuCtxGetDevice) X(cuCtxSynchronize) X(cuMemGetInfo) X(cuMemGetAllocationGranularity) \
  X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) \
  X(cuMemUnmap) X(cuMemSetAccess) X(cuMemHostRegister) X(cuMemHostUnregister) \
  X(cuMemHostGetDevicePointer) X(cuStreamCreateWithPriority) X(cuStreamDestroy) \
  X(cuStreamQuery) X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamIsCapturing) \
  X(cuLaunchHostFunc) X(cuEventCreate) X(cuEventDestroy) X(cuEventQuery) \
  X(cuEventSynchronize) X(cuEventElapsedTime) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) \
  X(cuMemcpyDtoDAsync) X(cuMemcpyPeerAsync) X(cuMemsetD8Async) X(cuLaunchKernel) X(cuGetErrorName) \
  X(cuGetErrorString) X(cuThreadExchangeStreamCaptureMode) X(cuEventRecordWithFlags) \
  X(cuMemcpyAsync) X(cuStreamAddCallback) X(cuStreamBeginCapture) X(cuStreamEndCapture) \
  X(cuStreamGetCaptureInfo) X(cuGraphInstantiate) X(cuGraphLaunch) X(cuGraphGetNodes) \
  X(cuGraphNodeGetDependencies) X(cuGraphDestroy) X(cuGraphExecDestroy) \
  X(cuGraphRetainUserObject) X(cuUserObjectCreate) X(cuUserObjectRetain) X(cuUserObjectRelease)
// clang-format on

struct Driver {
#define EMULATED_MEMBER(name) decltype(&::name) name = nullptr;
  EMULATED_DRIVER(EMULATED_MEMBER)
#undef EMULATED_MEMBER
  decltype(&::cuGetProcAddress) get = nullptr;
  decltype(&::emulated_gpu_function) function = nullptr;
  decltype(&::emulated_gpu_is_device) is_device = nullptr;
  decltype(&::emulated_gpu_device_of) device_of = nullptr;
  decltype(&::emulated_gpu_is_registered) is_registered = nullptr;
  decltype(&::emulated_gpu_fail) fail = nullptr;
  decltype(&::emulated_gpu_check_unsafe) check_unsafe = nullptr;
  decltype(&::emulated_gpu_wait_for_device) wait_for_device = nullptr;
  int device_count = 0;
};

const Driver& driver();

inline CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace emulated_gpu::runtime
