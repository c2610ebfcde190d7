// SPDX-License-Identifier: Apache-2.0
//
// WriteBarrier: what stops a write to an extent while the extent is write-protected, during the
// last, short part of an eviction or a merge (the window). A SIGSEGV handler lets the writing
// thread wait until the window is over; then the thread repeats the instruction. The handler does
// nothing else: no copy, no lock, no allocation. Faults that are not ours go to the program's
// handler (platform/fault_chain.h).
//
// Others install their own handlers at any time. So a thread that opens a window first calls
// ensure_installed(), which puts ours in front. A thread that has SIGSEGV blocked gets no handler:
// the kernel ends the process. So where a window can do without the signal, it does
// (platform/access_barrier.h, engine/move/cpu/slot_fetches.cpp). There is one barrier a process, as
// with signal handlers.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace tencache {

/// What the handler should do about a refused access inside the arena.
enum class FaultVerdict : uint8_t {
  kWait,     // a protected window is open: look again soon
  kRetry,    // the window is over: repeat the access
  kForeign,  // no window of ours: a bug in the program, which gets its signal
};

/// Judges an address inside the arena. It runs in a signal handler, so it is lock-free and
/// async-signal-safe.
using FaultJudge = FaultVerdict (*)(const void* address);

class WriteBarrier {
 public:
  /// Sets our address range and its judge. REQUIRES: no window has been opened.
  static void configure(const void* arena_base, uint64_t arena_bytes, FaultJudge judge);

  /// Puts our handler in front if it is not there.
  static Status ensure_installed();

  /// The number of writes that had to wait since the start of the process.
  static uint64_t waited_count();
};

}  // namespace tencache
