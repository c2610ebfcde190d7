// SPDX-License-Identifier: Apache-2.0
//
// How the simulated driver turns numbers into handles and addresses into pointers.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace tencache {

/// Turns a number into a handle, which looks like an address.
template <typename Handle>
Handle handle_of(uint64_t name) {
  return reinterpret_cast<Handle>(name * 16);
}

inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace tencache
