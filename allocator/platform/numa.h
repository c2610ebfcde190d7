// SPDX-License-Identifier: Apache-2.0
//
// NUMA by plain system calls and /sys: which processors stand at a node, on which node memory shall
// be, on which processors a thread shall run. Containers refuse some of this and some kernels tell
// nothing of nodes (gVisor), so every function answers with a Status that says why, and its callers
// do without. libnuma is not used: it says that placement is available where seccomp refuses it.
// No state; any thread.
#pragma once

#include <sched.h>

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace tencache {

/// The processors of a list as /sys writes it, "0-3,8"; kInvalidArgument for anything else and for
/// numbers that a cpu_set_t does not hold.
Result<cpu_set_t> parse_processor_list(std::string_view text);

/// The processors of a node on which the calling thread may run. kUnavailable when the kernel tells
/// of no such node, or when it has no processor for us.
Result<cpu_set_t> processors_of_node(int node);

/// Lets the calling thread run on these processors alone.
Status run_on_processors(const cpu_set_t& processors);

/// Asks for pages on a node, for those of [memory, memory + bytes) that are not there yet.
/// Preferred and not forced: where the node is full, pages of another one are slower, and forced
/// ones would have the kernel kill processes. REQUIRES: memory is page aligned, node >= 0.
Status prefer_node(void* memory, uint64_t bytes, int node);

}  // namespace tencache
