// SPDX-License-Identifier: Apache-2.0
//
// The driver behind the guard: its own functions, and a dlsym() that bypasses the guard. Threads:
// any.
#pragma once

namespace tencache::guard {

using Dlsym = void* (*)(void* library, const char* name) noexcept;

/// The C library's dlsym(). It is never null.
Dlsym real_dlsym();

/// The driver's function of exactly this name, e.g. "cuMemcpyHtoD_v2"; null if there is none.
void* find_in_driver(const char* name);

template <typename Function>
Function driver_function(const char* name) {
  return reinterpret_cast<Function>(find_in_driver(name));
}

}  // namespace tencache::guard
