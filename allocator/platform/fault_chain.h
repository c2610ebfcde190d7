// SPDX-License-Identifier: Apache-2.0
//
// FaultChain: a handler of ours in front of the program's, for a signal that reports faults. A
// signal that is not ours reaches the program's handler as the kernel would have delivered it: with
// its mask, its stack, its flags, and with nothing that a handler which leaves by siglongjmp could
// leave set. A signal that somebody sent, and that the program ignores or leaves to its default,
// ends as it would have without us.
//
// Note [Places]: others install handlers at any time (faulthandler, DataLoader workers), and some
// put back later what they found. So each action that ours replaces has a place, and each place a
// function of its own, which knows what it stands in front of. A newcomer that found ours, and puts
// it back or calls it, so reaches what was there before the newcomer.
//
// Threads: any thread may call ensure_in_front(). The handlers take no lock and allocate nothing.
#pragma once

#include <signal.h>

#include <cstdint>

#include "base/status.h"

namespace tencache {

/// The signals that have a chain.
enum class FaultSignal : uint8_t { kSegmentation, kBus };

/// Looks at a signal first. It returns true if the signal is done: then the instruction runs again.
/// The filter runs in a signal handler and may change errno.
using FaultFilter = bool (*)(const siginfo_t& info);

class FaultChain {
 public:
  /// Puts ours in front if it is not there. Costs one system call if it is. Each signal has one
  /// filter.
  static Status ensure_in_front(FaultSignal signal, FaultFilter filter);
};

}  // namespace tencache
