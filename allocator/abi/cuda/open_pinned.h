// SPDX-License-Identifier: Apache-2.0
//
// The function that opens pinned memory. Suites that link the core itself can bring their own
// driver table (the simulated driver). libtencache.so does not export this.
#pragma once

#include <memory>

#include "abi/tencache_pinned.h"
#include "base/status.h"
#include "memory/cuda/pinned_memory.h"
#include "platform/cuda/driver_api.h"

struct tencache_pinned {
  std::unique_ptr<tencache::DriverApi> own_driver;  // null if the caller brought one
  std::unique_ptr<tencache::PinnedMemory> memory;
};

namespace tencache {

/// Does what tencache_pinned_open() does, with the caller's driver table and configuration. The
/// table must outlive the memory.
Result<tencache_pinned*> open_pinned(const DriverApi& driver, PinnedMemoryConfig config);

}  // namespace tencache
