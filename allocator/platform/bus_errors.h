// SPDX-License-Identifier: Apache-2.0
//
// BusErrors: says what was lost when the kernel cannot bring a page of a cold extent. Where the
// program reads such a page outside of an op, and the disk fails or the file is shorter than it
// was, the kernel sends SIGBUS. A handler prints where, and then the signal does what it would do
// without tencache: it goes to the program's handler, or ends the process (platform/fault_chain.h).
//
// A system call that reads such a page gets EFAULT instead, and no signal.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace tencache {

/// What a page of an extent should have shown.
struct LostPage {
  const char* directory = nullptr;  // of the spill file
  uint64_t file_offset = 0;
  uint64_t extent_id = 0;
  uint64_t extent_bytes = 0;
};

/// Finds out what is behind an address of the arena. It returns false where that is no page of the
/// spill file. The finder runs in a signal handler, so it is lock-free and async-signal-safe.
using PageFinder = bool (*)(const void* address, LostPage* page);

class BusErrors {
 public:
  /// Sets our address range and who knows what is behind it.
  static void configure(const void* arena_base, uint64_t arena_bytes, PageFinder finder);

  /// Puts our handler in front if it is not there. Call before an extent becomes cold.
  static Status ensure_installed();
};

}  // namespace tencache
