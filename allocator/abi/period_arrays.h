// SPDX-License-Identifier: Apache-2.0
//
// Conversions of a period that came in through the C ABI as flat arrays: into a checked trace, to
// plan for a machine that may not exist (abi/plan_json.h), or into a stored period, to follow in
// this run. Nothing here keeps state.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "abi/tencache.h"
#include "base/status.h"
#include "learn/period.h"

namespace tencache {

/// Turns the arrays into a trace. Fails with kInvalidArgument if they make none, or if its sums
/// exceed what the planner can handle.
Result<Trace> to_trace(const tencache_period& period);

/// The bytes of all tensors of a trace and its fixed bytes, together. The trace comes from
/// to_trace(), which has checked that the sum does not wrap.
uint64_t total_bytes(const Trace& trace);

/// Turns the arrays into a stored period. `op_names` has a name for each op. `op_number` gives the
/// number by which this process calls an op. Fails as to_trace() does, with kInvalidArgument where
/// the tensors have more bytes than a stored period may have, and with kOutOfMemory.
Result<Period> to_stored_period(const tencache_period& period, const char* const* op_names,
                                const std::function<uint32_t(std::string_view)>& op_number);

}  // namespace tencache
