// SPDX-License-Identifier: Apache-2.0
//
// Functions of the driver beyond tencache's own table (TENCACHE_CUDA_FUNCTIONS), for PyTorch, the
// stand-in for the run time and the launch guard. They take the simulated driver first, then the
// parameters of CUDA's functions. Contexts, queries of devices and fills of memory are methods of
// the simulated driver's parts.
//
// The dynamic linker needs the names of EMULATED_ABSENT_FUNCTIONS; a call of one returns an error
// and prints the name on stderr. Threads: any but those of streams.
#pragma once

#include "support/cuda/simulated_driver.h"

// The functions with a stand-in besides those of TENCACHE_CUDA_FUNCTIONS.
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
  X(cuEventRecordWithFlags)       \
  X(cuGraphDestroy)               \
  X(cuGraphExecDestroy)           \
  X(cuGraphGetNodes)              \
  X(cuGraphInstantiate)           \
  X(cuGraphLaunch)                \
  X(cuGraphNodeGetDependencies)   \
  X(cuGraphRetainUserObject)      \
  X(cuMemcpyAsync)                \
  X(cuMemsetD32Async)             \
  X(cuStreamAddCallback)          \
  X(cuStreamBeginCapture)         \
  X(cuStreamEndCapture)           \
  X(cuStreamGetCaptureInfo)       \
  X(cuUserObjectCreate)           \
  X(cuUserObjectRelease)          \
  X(cuUserObjectRetain)           \
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

/// Loads an image of the simulated driver, or a cubin of NVRTC with tencache's own kernels.
CUresult load_module(SimulatedDriver& driver, CUmodule* module, const void* image);
/// Launches a kernel of a module, or one of the emulation, whose task lies in the block of `extra`.
CUresult launch_kernel(SimulatedDriver& driver, CUfunction function, unsigned grid_x,
                       unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                       unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters,
                       void** extra);
CUresult function_name(SimulatedDriver& driver, const char** name, CUfunction function);
/// Gives the place and size of a kernel's parameter. A kernel of the emulation has no parameters
/// but its block.
CUresult function_parameter(SimulatedDriver& driver, CUfunction function, size_t index,
                            size_t* offset, size_t* bytes);

// ---- memory.cpp

/// Returns CUDA_ERROR_INVALID_VALUE where the memory is not of the device of its context.
CUresult copy_peer(SimulatedDriver& driver, CUdeviceptr target, CUcontext target_context,
                   CUdeviceptr source, CUcontext source_context, size_t bytes, CUstream stream);
/// Copies from one address to another. The addresses determine the kind of the copy.
CUresult copy_by_address(SimulatedDriver& driver, CUdeviceptr target, CUdeviceptr source,
                         size_t bytes, CUstream stream);
/// Sets `*can` to 1 for two different devices with EMULATED_GPU_PEERS=1, and to 0 otherwise:
/// without that setting no device reads another one's memory.
CUresult can_access_peer(SimulatedDriver& driver, int* can, CUdevice device, CUdevice peer);
CUresult pointer_attribute(SimulatedDriver& driver, void* data, CUpointer_attribute attribute,
                           CUdeviceptr address);
CUresult address_range(SimulatedDriver& driver, CUdeviceptr* base, size_t* bytes,
                       CUdeviceptr address);

// ---- graphs.cpp, user_objects.cpp

CUresult instantiate_graph(SimulatedDriver& driver, CUgraphExec* made, CUgraph graph,
                           unsigned long long flags);
CUresult graph_nodes(SimulatedDriver& driver, CUgraph graph, CUgraphNode* nodes, size_t* count);
CUresult node_dependencies(SimulatedDriver& driver, CUgraphNode node, CUgraphNode* nodes,
                           CUgraphEdgeData* edges, size_t* count);
CUresult destroy_graph(SimulatedDriver& driver, CUgraph graph);
CUresult destroy_executable(SimulatedDriver& driver, CUgraphExec graph);
CUresult create_user_object(SimulatedDriver& driver, CUuserObject* made, void* value,
                            CUhostFn destroy, unsigned count, unsigned flags);
CUresult retain_user_object(SimulatedDriver& driver, CUuserObject object, unsigned count);
CUresult release_user_object(SimulatedDriver& driver, CUuserObject object, unsigned count);
CUresult keep_user_object(SimulatedDriver& driver, CUgraph graph, CUuserObject object,
                          unsigned count, unsigned flags);

}  // namespace tencache
