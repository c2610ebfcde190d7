// SPDX-License-Identifier: Apache-2.0
//
// Why nothing is installed: the version of the loaded libtorch, as libtorch itself tells it, and
// the error for a user whose torch is laid out differently (self_test.h). Both libraries of the
// shim have this code.
//
// Threads: any.
#pragma once

#include <string>

#include "abi/tencache.h"

namespace tencache::shim {

struct TorchVersion {
  unsigned major;
  unsigned minor;
  unsigned patch;

  std::string text() const;  // "2.11.1"
};

/// The version that the loaded libtorch was compiled as.
TorchVersion loaded_torch();

/// The error: both versions, the difference (a clause) and the remedy.
std::string layout_refusal(const std::string& difference);

/// Fills `error`, unless it is null, and returns its code, TENCACHE_FAILED_PRECONDITION.
int refuse(const std::string& message, tencache_error* error);

}  // namespace tencache::shim
