// SPDX-License-Identifier: Apache-2.0
//
// The functions of the driver that queue work on memory which their arguments name: launches of
// kernels, copies and sets. Whoever asks for one of them gets the guard's function in its place,
// which tells the hooks what the call may use, and calls the driver's with the arguments as they
// came.
//
// A library may ask in several ways, and the driver may have several functions of one name, e.g.
// one for each meaning of the NULL stream: the guard has a function for each of the driver's.
//
// Not among them: copies of arrays (textures), batches of copies, words that a stream writes,
// graphs that are built node by node, and what a kernel finds by an address in memory. And only
// launches are served by the linker, too.
//
// Threads: any, no locks. Asking allocates nothing, for libraries ask while they are being loaded.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string_view>

namespace tencache::guard {

/// What is served to who asks for an exported symbol (dlsym), e.g. "cuMemcpyHtoD_v2_ptds"; `real`
/// itself, the driver's, where it queues no such work.
void* guarded_symbol(std::string_view symbol, void* real);
/// The same for cuGetProcAddress() with these arguments.
void* guarded_entry(std::string_view name, int version, cuuint64_t flags, void* real);

// For those who are linked with the driver, under the driver's names (guard/interposer.cpp).
CUresult launch_kernel(bool is_per_thread, CUfunction kernel, unsigned grid_x, unsigned grid_y,
                       unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                       unsigned shared_bytes, CUstream stream, void** arguments, void** extra);
CUresult launch_kernel_ex(bool is_per_thread, const CUlaunchConfig* config, CUfunction kernel,
                          void** arguments, void** extra);
CUresult launch_cooperative_kernel(bool is_per_thread, CUfunction kernel, unsigned grid_x,
                                   unsigned grid_y, unsigned grid_z, unsigned block_x,
                                   unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                   CUstream stream, void** arguments);

CUresult unload_module(CUmodule module);
CUresult unload_library(CUlibrary library);

}  // namespace tencache::guard
