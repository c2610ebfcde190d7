// SPDX-License-Identifier: Apache-2.0
//
// Whether this process may call the CUDA driver. It may not in a forked child, whose contexts are
// its parent's (a call fails at best), and not once it exits, when the driver has taken itself
// apart or is about to: what it holds then goes back to the system anyway, so leaking is right.
// CallScope refuses by this (platform/cuda/call_scope.h), destructors do nothing, without a word.
//
// The watch begins when the driver is loaded. Exit handlers run in the reverse order of their
// registration, so the one that is registered then, after libcuda's own, runs before it; handlers
// of later on run earlier still, and find a driver that works. A static object of ours would be
// destroyed after libcuda instead, and getpid() in each call would be a system call. What the watch
// cannot see is a call that a service thread has begun when the exit begins: the driver answers
// CUDA_ERROR_DEINITIALIZED to those, which ends the use of it as well.
//
// A child of a process that had not loaded the driver may load it. Children of vfork(), or of
// clone() past the C library, are not seen; they run nothing of ours.
//
// Threads: any. The state only ever leaves kAllowed; relaxed, because it orders nothing: a thread
// that sees it late is one that called a moment earlier.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"

namespace tencache {

enum class DriverUse : uint8_t { kAllowed, kInForkedChild, kAtExit };

// Written by the handlers of fork and exit, and where the driver says that it is shut down.
inline std::atomic<DriverUse> g_driver_use = DriverUse::kAllowed;

/// One relaxed load.
inline bool may_call_driver() {
  return g_driver_use.load(std::memory_order_relaxed) == DriverUse::kAllowed;
}

/// OK, or kUnavailable with the reason.
Status driver_use_status();

/// From now on forks and the exit of the process are seen. Call it right after the driver was
/// loaded and started, by whatever table; again does nothing. kUnavailable when the C library takes
/// no more handlers.
Status watch_driver_use();

/// The driver has said that it is shut down.
void end_driver_use();

}  // namespace tencache
