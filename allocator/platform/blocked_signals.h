// SPDX-License-Identifier: Apache-2.0
//
// Whether a thread of this process blocks a signal. The kernel gives a fault of such a thread to no
// handler: it ends the process. The answer is that of the moment; it costs about 10 us for each
// thread, from /proc/self/task. The kernel's own threads (of io_uring) do not count, because faults
// of theirs send no signal. Nor do threads that begin or end: these block everything for a moment,
// and touch no tensor in it. The call waits for such a thread; one that still blocks everything
// after 50 ms or so counts as blocking the signal.
//
// Threads: any; no state.
#pragma once

namespace tencache {

/// Whether any thread blocks the signal. True, too, where /proc does not tell.
bool is_blocked_by_any_thread(int signal_number);

}  // namespace tencache
