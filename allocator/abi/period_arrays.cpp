// SPDX-License-Identifier: Apache-2.0
#include "abi/period_arrays.h"

#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/units.h"
#include "learn/tick_digest.h"

namespace tencache {
namespace {

// Sums of bytes and of nanoseconds may come to this and no more, so that later sums do not wrap.
constexpr uint64_t kSumMax = uint64_t{1} << 60;
// A stored period's tensors may have at most this many bytes. Moving this much takes days at the
// speed that is assumed before anything has been moved.
constexpr uint64_t kStoredBytesMax = uint64_t{1} << 50;

static_assert(TENCACHE_NO_TICK == kNoTick);

/// Adds `more` to `sum`. Returns false, and changes nothing, if the sum would pass kSumMax.
bool add_within_limit(uint64_t more, uint64_t* sum) {
  if (more > kSumMax - *sum) return false;
  *sum += more;
  return true;
}

Status check_sums(const Trace& trace) {
  uint64_t bytes = 0;
  bool fits = add_within_limit(trace.fixed_bytes, &bytes);
  for (const TraceTensor& tensor : trace.tensors) {
    fits = fits && add_within_limit(tensor.bytes, &bytes);
  }
  if (!fits) {
    return invalid_argument("trace: its tensors have more than " + format_bytes(kSumMax) +
                            " in total; check the unit of their sizes, which is one byte");
  }
  uint64_t compute_ns = 0;
  for (const TraceOp& op : trace.ops) {
    if (!add_within_limit(op.compute_ns, &compute_ns)) {
      return invalid_argument(
          "trace: its ops compute for more than 36 years in total; check the unit of "
          "their times, which is one nanosecond");
    }
  }
  return Status::ok();
}

/// Names the ops, and gives each tick the digest that the gate of this process works out for it.
void name_ops(Period* period, const char* const* op_names,
              const std::function<uint32_t(std::string_view)>& op_number) {
  Trace& trace = period->trace;
  trace.op_names.clear();
  std::unordered_map<std::string, uint32_t> places;
  for (Tick tick = 0; tick < trace.tick_count(); ++tick) {
    TraceOp& op = trace.ops[tick];
    const std::string name = op_names[tick];
    const auto [place, is_new] =
        places.try_emplace(name, static_cast<uint32_t>(trace.op_names.size()));
    if (is_new) trace.op_names.push_back(name);
    op.name = place->second;
    TickDigest digest(op_number(name));
    for (const TraceAccess& access : op.accesses) digest.add(access.is_write);
    period->digests.push_back(digest.value());
  }
}

/// Leaves the extents of persistent tensors open, to be found in this run. An extent that no op
/// names can never be found, and need not be.
void leave_extents_open(Period* period) {
  const Trace& trace = period->trace;
  period->extent_ids.assign(trace.tensors.size(), 0);
  for (const TraceOp& op : trace.ops) {
    for (const TraceAccess& access : op.accesses) {
      if (!trace.tensors[access.tensor].is_persistent()) continue;
      period->extent_ids[access.tensor] = kUnknownExtent;
    }
  }
  period->born_bytes = trace.transient_bytes();
}

}  // namespace

Result<Trace> to_trace(const tencache_period& period) {
  Trace trace;
  trace.op_names = {"op"};  // plans do not depend on names
  trace.fixed_bytes = period.fixed_bytes;
  trace.tensors.reserve(period.tensor_count);
  for (uint32_t index = 0; index < period.tensor_count; ++index) {
    trace.tensors.push_back(
        {period.tensor_bytes[index], period.allocated_at[index], period.freed_at[index]});
  }
  trace.ops.resize(period.op_count);
  size_t next = 0;
  for (uint32_t tick = 0; tick < period.op_count; ++tick) {
    TraceOp& op = trace.ops[tick];
    op.compute_ns = period.compute_ns[tick];
    op.accesses.reserve(period.access_counts[tick]);
    for (uint32_t index = 0; index < period.access_counts[tick]; ++index, ++next) {
      op.accesses.push_back({period.access_tensors[next], period.access_writes[next] != 0});
    }
  }
  TENCACHE_RETURN_IF_ERROR(trace.validate());
  TENCACHE_RETURN_IF_ERROR(check_sums(trace));
  return trace;
}

uint64_t total_bytes(const Trace& trace) {
  uint64_t bytes = trace.fixed_bytes;
  for (const TraceTensor& tensor : trace.tensors) bytes += tensor.bytes;
  return bytes;
}

Result<Period> to_stored_period(const tencache_period& period, const char* const* op_names,
                                const std::function<uint32_t(std::string_view)>& op_number) {
  try {
    Result<Trace> trace = to_trace(period);
    if (!trace.is_ok()) return trace.status();
    if (total_bytes(trace.value()) > kStoredBytesMax) {
      return invalid_argument("trace: its tensors have more than " + format_bytes(kStoredBytesMax) +
                              " in total, which no machine holds; record the program again");
    }
    Period stored;
    stored.trace = std::move(trace).value();
    name_ops(&stored, op_names, op_number);
    leave_extents_open(&stored);
    return stored;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "a period of " + std::to_string(period.op_count) +
                                                " ops needs more memory than this machine has "
                                                "left");
  }
}

}  // namespace tencache
