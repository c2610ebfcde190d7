// SPDX-License-Identifier: Apache-2.0
//
// The version of the loaded libtorch, as libtorch itself tells it, and the error for a user whose
// torch is laid out differently (self_test.h). Both libraries of the shim have this code.
//
// Threads: any.
#pragma once

#include <string>

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

}  // namespace tencache::shim
