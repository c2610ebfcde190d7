// SPDX-License-Identifier: Apache-2.0
//
// Whether this process may call the CUDA driver. A forked child may not: its contexts are its
// parent's, and a call fails at best. An exiting process may not: the driver has shut itself down
// or is about to. Everything it holds then goes back to the system anyway, so leaking is right.
// CallScope refuses by this state (platform/cuda/call_scope.h); destructors do nothing, silently.
//
// Destructors, and cleanup like theirs, also ignore what the driver answers while it may be called:
// an error there comes from earlier work, and the program meets it in its own next call.
//
// The watch begins when the driver is loaded. Exit handlers run in the reverse order of their
// registration. Ours is registered after libcuda's own and so runs before it; later handlers run
// earlier still and find a driver that works. A static object of ours would be destroyed after
// libcuda instead, and getpid() in each call would be a system call. The watch cannot see a call
// that a service thread has begun when the exit begins: the driver answers such a call with
// CUDA_ERROR_DEINITIALIZED, which also ends the use of the driver.
//
// A child of a process that had not loaded the driver may load it. Children of vfork(), or of
// clone() past the C library, are not seen; they run nothing of ours.
//
// Threads: any. The state only ever leaves kAllowed. It is relaxed because it orders nothing: a
// thread that sees a change late might as well have called a moment earlier.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"

namespace tencache {

enum class DriverUse : uint8_t { kAllowed, kInForkedChild, kAtExit };

// Whether this process may call the driver. The fork and exit handlers write it, and so does
// end_driver_use() when the driver reports that it is shut down.
inline std::atomic<DriverUse> g_driver_use = DriverUse::kAllowed;

/// Whether the driver may be called now. Costs one relaxed load.
inline bool may_call_driver() {
  return g_driver_use.load(std::memory_order_relaxed) == DriverUse::kAllowed;
}

/// Returns OK, or kUnavailable with the reason.
Status driver_use_status();

/// Starts watching forks and the exit of the process. Call it right after the driver was loaded and
/// started, through whatever table; later calls do nothing. Returns kUnavailable when the C library
/// takes no more handlers.
Status watch_driver_use();

/// Call it when the driver has reported that it is shut down.
void end_driver_use();

}  // namespace tencache
