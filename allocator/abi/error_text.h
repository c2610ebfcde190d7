// SPDX-License-Identifier: Apache-2.0
//
// How a Status crosses the C ABI: the function returns the code, or null where it returns a
// pointer; code and text go to the caller's struct.
#pragma once

#include <algorithm>
#include <cstring>

#include "abi/tencache.h"
#include "base/status.h"

namespace tencache {

/// Fills `error` unless it is null, and returns the code.
inline int report(const Status& status, tencache_error* error) {
  if (error != nullptr) {
    error->code = static_cast<int>(status.code());
    const size_t length = std::min(status.message().size(), sizeof error->message - 1);
    memcpy(error->message, status.message().data(), length);
    error->message[length] = '\0';
  }
  return static_cast<int>(status.code());
}

/// The pointer, or null with `error` filled.
template <typename T>
T* value_or_null(const Result<T*>& result, tencache_error* error) {
  if (result.is_ok()) return result.value();
  report(result.status(), error);
  return nullptr;
}

}  // namespace tencache
