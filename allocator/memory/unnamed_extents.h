// SPDX-License-Identifier: Apache-2.0
//
// Extents that no op has named: what a program loads, unpickles or resizes, and what was allocated
// before the hooks were armed. No gate knows how they are used, so they stay as long as anything
// else may leave. When nothing else is left, and before the budget is exceeded, the oldest of them
// count as seen: the cold mapping stays correct for whoever still uses them (cpu backend).
//
// The newest of each thread goes last. A loader is likely to be filling it right now.
//
// Threads: any. An extent may change while it is looked at; a flag that comes too late is cleared
// when the extent is handed out again.
#pragma once

#include <cstdint>
#include <span>

#include "memory/heap.h"

namespace tencache {

/// Counts the oldest of `extents` as seen until they make `bytes`, and `more_bytes` on top unless
/// only the newest of threads could give them. Returns the bytes that may leave now.
uint64_t count_oldest_as_seen(std::span<const ListedExtent> extents, uint64_t bytes,
                              uint64_t more_bytes);

}  // namespace tencache
