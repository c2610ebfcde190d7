// SPDX-License-Identifier: Apache-2.0
//
// The driver's functions that queue work on memory which their arguments name: launches of kernels,
// copies and sets; and those that end streams or the owners of kernels. A library that asks for one
// of them gets the guard's function in its place. The guard's function tells the hooks what the
// call may use, or what it ends, and calls the driver's function with the same arguments.
//
// A library may ask in several ways, and the driver may have several functions of one name, e.g.
// one for each meaning of the NULL stream. The guard has a function for each of the driver's.
//
// The guard does not see copies of arrays (textures), batches of copies, words that a stream
// writes, graphs that are built node by node, or memory that a kernel finds through an address in
// memory. Of the guarded functions, the linker resolves to the guard only launches and what ends a
// stream, a module or a library: driver_functions.cpp exports them under the driver's names.
//
// Threads: any. Looking up a function takes no lock and allocates nothing, because libraries do it
// while they are being loaded.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string_view>

namespace tencache::guard {

/// Returns the function to serve for an exported symbol (dlsym), e.g. "cuMemcpyHtoD_v2_ptds".
/// Returns `real`, the driver's, for a symbol that the guard has no function for.
void* guarded_symbol(std::string_view symbol, void* real);
/// Returns the function to serve for cuGetProcAddress() with these arguments. Returns `real` where
/// the guard has no function.
void* guarded_entry(std::string_view name, int version, cuuint64_t flags, void* real);

}  // namespace tencache::guard
