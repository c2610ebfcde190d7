// SPDX-License-Identifier: Apache-2.0
//
// What the driver offers beyond tencache's own table (TENCACHE_CUDA_FUNCTIONS), because PyTorch,
// the stand-in for the run time or the launch guard ask for it: functions that take the simulated
// driver first, with the parameters of CUDA's functions after it. Contexts, queries of devices and
// what fills memory are methods of the simulated driver's parts.
//
// A name of EMULATED_ABSENT_FUNCTIONS must be there for the dynamic linker; who calls it gets an
// error, and the name stands on stderr. Any thread but those of streams.
#pragma once

#include "support/cuda/simulated_driver.h"

// The names that libcuda.so.1 exports besides those of TENCACHE_CUDA_FUNCTIONS.
#define EMULATED_OWN_FUNCTIONS(X) \
  X(cuDevicePrimaryCtxGetState)   \
  X(cuDeviceGetUuid)              \
  X(cuDeviceCanAccessPeer)        \
  X(cuCtxGetDevice)               \
  X(cuCtxPushCurrent)             \
  X(cuCtxPopCurrent)              \
  X(cuCtxSynchronize)             \
  X(cuFuncGetName)                \
  X(cuFuncGetParamInfo)           \
  X(cuMemsetD32Async)             \
  X(cuStreamWriteValue32)         \
  X(cuMemcpyPeerAsync)            \
  X(cuPointerGetAttribute)        \
  X(cuMemGetAddressRange)         \
  X(cuGetExportTable)             \
  X(cuGetProcAddress)

#define EMULATED_ABSENT_FUNCTIONS(X)             \
  X(cuCtxEnablePeerAccess)                       \
  X(cuFuncGetAttribute)                          \
  X(cuFuncSetAttribute)                          \
  X(cuFuncSetCacheConfig)                        \
  X(cuLaunchCooperativeKernel)                   \
  X(cuLaunchKernelEx)                            \
  X(cuLinkAddData)                               \
  X(cuLinkComplete)                              \
  X(cuLinkCreate)                                \
  X(cuMemExportToShareableHandle)                \
  X(cuMemGetAllocationPropertiesFromHandle)      \
  X(cuMemImportFromShareableHandle)              \
  X(cuMemRetainAllocationHandle)                 \
  X(cuModuleLoad)                                \
  X(cuModuleLoadDataEx)                          \
  X(cuMulticastAddDevice)                        \
  X(cuMulticastBindMem)                          \
  X(cuMulticastCreate)                           \
  X(cuMulticastUnbind)                           \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuTensorMapEncodeTiled)

namespace tencache {

// ---- modules.cpp

/// An image of the simulated driver, or a cubin of NVRTC with tencache's own kernels.
CUresult load_module(SimulatedDriver& driver, CUmodule* module, const void* image);
/// A kernel of a module, or one of the emulation, whose task lies in the block of `extra`.
CUresult launch_kernel(SimulatedDriver& driver, CUfunction function, unsigned grid_x,
                       unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                       unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters,
                       void** extra);
CUresult function_name(SimulatedDriver& driver, const char** name, CUfunction function);
/// A kernel of the emulation has no parameters but its block.
CUresult function_parameter(SimulatedDriver& driver, CUfunction function, size_t index,
                            size_t* offset, size_t* bytes);

// ---- memory.cpp

/// CUDA_ERROR_INVALID_VALUE where the memory is not of the device of its context.
CUresult copy_peer(SimulatedDriver& driver, CUdeviceptr target, CUcontext target_context,
                   CUdeviceptr source, CUcontext source_context, size_t bytes, CUstream stream);
/// No device reads another one's memory.
CUresult can_access_peer(SimulatedDriver& driver, int* can, CUdevice device, CUdevice peer);
CUresult pointer_attribute(SimulatedDriver& driver, void* data, CUpointer_attribute attribute,
                           CUdeviceptr address);
CUresult address_range(SimulatedDriver& driver, CUdeviceptr* base, size_t* bytes,
                       CUdeviceptr address);

}  // namespace tencache
