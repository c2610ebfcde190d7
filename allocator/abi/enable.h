// SPDX-License-Identifier: Apache-2.0
//
// tencache_enable(): finds the libtorch of a C++ program, and loads the shim that fits it. The core
// knows torch by the names of its libraries and by two of their functions; all else is the shim's.
// Python programs do the same in python/tencache/_runtime.py, where there is more to serve.
//
// Threads: one.
#pragma once

#include "abi/runtime.h"
#include "base/status.h"

namespace tencache {

Status enable(Runtime& runtime);

}  // namespace tencache
