// SPDX-License-Identifier: Apache-2.0
#include "abi/plan_json.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "abi/period_arrays.h"
#include "base/units.h"
#include "learn/bound.h"
#include "learn/host_model.h"
#include "learn/planner.h"
#include "learn/trace_index.h"

namespace tencache {
namespace {

// The longest time that moving everything once may take, on a link or of processor time. It is far
// beyond any use and far below 2^64 ns.
constexpr double kMoveSecondsMax = 1e6;

Status check_speed(double bytes_per_s, uint64_t trace_bytes) {
  // The comparison also refuses "not a number".
  if (bytes_per_s > 0 && static_cast<double>(trace_bytes) / bytes_per_s <= kMoveSecondsMax) {
    return Status::ok();
  }
  return invalid_argument("machine: a bandwidth of " + std::to_string(bytes_per_s) +
                          " bytes/s cannot be planned with; give that of a disk, such as 2e9");
}

Result<Machine> to_machine(const tencache_machine& given, uint64_t trace_bytes,
                           uint64_t largest_bytes) {
  TENCACHE_RETURN_IF_ERROR(check_speed(given.read_bytes_per_s, trace_bytes));
  TENCACHE_RETURN_IF_ERROR(check_speed(given.write_bytes_per_s, trace_bytes));
  for (const uint64_t fixed_ns : {given.read_fixed_ns, given.write_fixed_ns}) {
    if (fixed_ns > uint64_t{1'000'000'000}) {
      return invalid_argument("machine: " + std::to_string(fixed_ns) +
                              " ns for one move cannot be planned with; give at most 1e9");
    }
  }
  for (const double work_ns :
       {given.read_work_ns_per_byte, given.write_work_ns_per_byte, given.drop_work_ns_per_byte}) {
    if (!(work_ns >= 0 && static_cast<double>(trace_bytes) * work_ns <= kMoveSecondsMax * 1e9)) {
      return invalid_argument(
          "machine: " + std::to_string(work_ns) +
          " ns of processor time for a byte cannot be planned with; give 0 to 10");
    }
  }
  // A budget, of host memory or of the device, that exceeds the bytes of all tensors changes
  // nothing, and sums with it could wrap.
  const bool has_disk_below = given.host_bytes > 0 && given.host_bytes < trace_bytes;
  if (has_disk_below) {
    TENCACHE_RETURN_IF_ERROR(check_speed(given.disk_read_bytes_per_s, trace_bytes));
    TENCACHE_RETURN_IF_ERROR(check_speed(given.disk_write_bytes_per_s, trace_bytes));
    if (given.host_bytes < largest_bytes) {
      return invalid_argument("machine: " + format_bytes(given.host_bytes) +
                              " of host memory hold no tensor of " + format_bytes(largest_bytes) +
                              ", which could never leave the device; give at least as much");
    }
  }
  const uint64_t host_bytes = has_disk_below ? given.host_bytes : 0;
  return Machine{.budget_bytes = std::min(given.budget_bytes, trace_bytes),
                 .read_bytes_per_s = given.read_bytes_per_s,
                 .write_bytes_per_s = given.write_bytes_per_s,
                 .is_half_duplex = given.is_half_duplex != 0,
                 .read_fixed_ns = given.read_fixed_ns,
                 .write_fixed_ns = given.write_fixed_ns,
                 .read_work_ns_per_byte = given.read_work_ns_per_byte,
                 .write_work_ns_per_byte = given.write_work_ns_per_byte,
                 .drop_work_ns_per_byte = given.drop_work_ns_per_byte,
                 .host_bytes = host_bytes,
                 .host_headroom_bytes =
                     static_cast<uint64_t>(static_cast<double>(host_bytes) * kHostHeadroomShare),
                 .disk_read_bytes_per_s = given.disk_read_bytes_per_s,
                 .disk_write_bytes_per_s = given.disk_write_bytes_per_s};
}

std::string figures_of(const Trace& trace, const Machine& machine) {
  const Planned planned = make_plan(trace, machine);
  const Simulation& simulation = planned.simulation;
  // The error bars: the same plan where everything moves slower or faster than the plan assumes.
  const Machine slower = machine.at_speed(1 - kSpeedErrorShare);
  const Machine faster = machine.at_speed(1 + kSpeedErrorShare);
  const TraceIndex index(trace);
  const uint64_t slower_ns = simulate(index, planned.plan, slower).step_ns;
  const uint64_t faster_ns = simulate(index, planned.plan, faster).step_ns;
  const nlohmann::ordered_json json = {{"step_ns", simulation.step_ns},
                                       {"step_slower_ns", slower_ns},
                                       {"step_faster_ns", faster_ns},
                                       {"compute_ns", simulation.compute_ns},
                                       {"bound_step_ns", bound_step_ns(trace, machine)},
                                       {"stall_ns", simulation.total_stall_ns()},
                                       {"work_ns", simulation.work_ns},
                                       {"bytes_read", simulation.bytes_read},
                                       {"bytes_written", simulation.bytes_written},
                                       {"bytes_dropped", simulation.bytes_dropped},
                                       {"bytes_late", simulation.bytes_late},
                                       {"disk_bytes_read", simulation.disk_bytes_read},
                                       {"disk_bytes_written", simulation.disk_bytes_written},
                                       {"over_budget_bytes", simulation.over_budget_bytes},
                                       {"peak_bytes", trace.peak_bytes()},
                                       {"largest_op_bytes", trace.largest_op_bytes()}};
  return json.dump();
}

nlohmann::ordered_json times_of(const std::vector<Migration>& migrations, bool is_fetch) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  nlohmann::ordered_json begin_ns = tensors;
  nlohmann::ordered_json end_ns = tensors;
  for (const Migration& migration : migrations) {
    if (migration.is_fetch != is_fetch) continue;
    tensors.push_back(migration.tensor);
    begin_ns.push_back(migration.begin_ns);
    end_ns.push_back(migration.end_ns);
  }
  return {{"tensors", std::move(tensors)},
          {"begin_ns", std::move(begin_ns)},
          {"end_ns", std::move(end_ns)}};
}

std::string course_of(const Trace& trace, const Machine& machine) {
  const Simulation simulation = make_plan(trace, machine).simulation;
  const nlohmann::ordered_json json = {{"step_ns", simulation.step_ns},
                                       {"work_ns", simulation.work_ns},
                                       {"begin_ns", simulation.begin_ns},
                                       {"stall_ns", simulation.stall_ns},
                                       {"used_bytes", simulation.used_bytes},
                                       {"existing_bytes", trace.bytes_by_tick()},
                                       {"evictions", times_of(simulation.migrations, false)},
                                       {"fetches", times_of(simulation.migrations, true)}};
  return json.dump();
}

/// Checks the input and passes it on as a trace and a machine.
Result<std::string> ask(const tencache_period& period, const tencache_machine& machine,
                        std::string (*answer)(const Trace&, const Machine&)) {
  try {
    const Result<Trace> trace = to_trace(period);
    if (!trace.is_ok()) return trace.status();
    uint64_t largest_bytes = 0;
    for (const TraceTensor& tensor : trace.value().tensors) {
      largest_bytes = std::max(largest_bytes, tensor.bytes);
    }
    const Result<Machine> limits = to_machine(machine, total_bytes(trace.value()), largest_bytes);
    if (!limits.is_ok()) return limits.status();
    return answer(trace.value(), limits.value());
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory,
                  "planning a period of " + std::to_string(period.op_count) +
                      " ops needs more memory than this machine has left");
  }
}

}  // namespace

Result<std::string> plan_json(const tencache_period& period, const tencache_machine& machine) {
  return ask(period, machine, figures_of);
}

Result<std::string> timeline_json(const tencache_period& period, const tencache_machine& machine) {
  return ask(period, machine, course_of);
}

}  // namespace tencache
