// SPDX-License-Identifier: Apache-2.0
//
// NUMA by plain system calls and /sys: the processors of a node, the node of memory, the processors
// of a thread. Containers refuse some of this, and some kernels report no nodes (gVisor), so every
// function returns a Status that says why, and its callers do without. libnuma is not used, because
// it reports placement as available where seccomp refuses it. The functions keep no state.
// Threads: any.
#pragma once

#include <sched.h>

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace tencache {

/// Parses a list of processors as /sys writes it, "0-3,8" or nothing. Returns kInvalidArgument for
/// anything else and for numbers that a cpu_set_t cannot hold.
Result<cpu_set_t> parse_processor_list(std::string_view text);

/// The processors of a node on which the calling thread may run. Returns kUnavailable when the
/// kernel reports no such node, or when this thread may use none of its processors. Other errors
/// are those of the list or of the kernel.
Result<cpu_set_t> processors_of_node(int node);

/// Lets the calling thread run on these processors alone.
Status run_on_processors(const cpu_set_t& processors);

/// Asks for pages of [memory, memory + bytes) that are not there yet to be placed on a node. The
/// node is preferred, not forced: where it is full, pages of another node are slower, but with
/// forced ones the kernel would kill processes. REQUIRES: memory is page aligned, node >= 0.
Status prefer_node(void* memory, uint64_t bytes, int node);

}  // namespace tencache
