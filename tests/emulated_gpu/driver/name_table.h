// SPDX-License-Identifier: Apache-2.0
//
// What each name of the driver stands for: one table for the exports (exports.cpp) and for
// cuGetProcAddress. It is made when the library is loaded, without a driver, and is constant then;
// any thread.
#pragma once

#include <string_view>

namespace tencache {

/// Null for a name that the driver has not. A name with a version (cuStreamDestroy_v2) and without
/// one stand for the same function, but for cuGetProcAddress.
void* find_driver_function(std::string_view name);

}  // namespace tencache
