// SPDX-License-Identifier: Apache-2.0
//
// The function behind each name of the driver: one table for the exports (exports.cpp) and for
// cuGetProcAddress. It is made when the library is loaded, without a driver, and constant from then
// on. Threads: any.
#pragma once

#include <string_view>

namespace tencache {

/// Null for a name that the driver lacks. A name with a version (cuStreamDestroy_v2) and the plain
/// one stand for the same function, except for cuGetProcAddress.
void* find_driver_function(std::string_view name);

}  // namespace tencache
