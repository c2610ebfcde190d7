// SPDX-License-Identifier: Apache-2.0
//
// WriteBarrier: what happens to a write that hits an extent while it is write-protected, i.e.
// during the last, short part of an eviction or a merge. A SIGSEGV handler lets the writing thread
// wait until the window is over and then repeats the instruction. It does nothing else: no copy, no
// lock, no allocation. Faults that are not ours go to the handler that was there before.
//
// Others install their own handler at any time (faulthandler, DataLoader workers), so whoever opens
// a window calls ensure_installed() first: it checks that our handler is in front and, if not, puts
// it there and chains to the newcomer. One barrier a process (a signal handler is process-wide).
#pragma once

#include <cstdint>

#include "base/status.h"

namespace tencache {

/// What the handler should do about a refused access inside the arena.
enum class FaultVerdict : uint8_t {
  kWait,     // a protected window is open: look again soon
  kRetry,    // the window is over: repeat the access
  kForeign,  // not a window of ours: a bug in the program, let it have its signal
};

/// Judges an address inside the arena. Runs in a signal handler: lock-free, async-signal-safe.
using FaultJudge = FaultVerdict (*)(const void* address);

class WriteBarrier {
 public:
  /// Sets which addresses are ours and who judges them. Before the first window.
  static void configure(const void* arena_base, uint64_t arena_bytes, FaultJudge judge);

  /// Puts our handler in front if it is not. Two system calls when it is not, one when it is.
  static Status ensure_installed();

  /// Writes that had to wait, since the start of the process.
  static uint64_t waited_count();
};

}  // namespace tencache
