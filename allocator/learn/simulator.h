// SPDX-License-Identifier: Apache-2.0
//
// simulate: tells what a plan would do. It replays a trace, period after period, on a machine, and
// makes the plan's moves. At an op it does what the engine does there: it waits for fetches, makes
// room, and fetches on demand what is missing. It returns time, stalls and traffic of a period, in
// steady state if the replay reaches one. It is a pure function: the same arguments always give the
// same result.
//
// learn/device_model.h tells how long ops wait: it plays the device and its link. Where the machine
// has a disk below host memory, departures and returns wait for the disk, too (learn/host_model.h).
// The processor time of the moves is added to the step at the end, since it is taken from all ops
// alike.
#pragma once

#include <cstdint>
#include <vector>

#include "learn/plan.h"
#include "learn/trace.h"

namespace tencache {

/// Steps are compared in units of the computing time divided by this. A wait of no more than such a
/// unit does not count, nor does a distance from the bound of no more than the bound divided by
/// this.
inline constexpr uint64_t kStepParts = 1024;

/// A move of one tensor. Times count from the start of the period, and are below 0 before it.
struct Migration {
  uint32_t tensor = 0;
  bool is_fetch = false;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;  // equal to begin_ns: it left without a write
};

struct Simulation {
  uint64_t step_ns = 0;     // of one period
  uint64_t compute_ns = 0;  // the part that no schedule can save
  uint64_t work_ns = 0;     // the part that is processor time of the moves
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t bytes_dropped = 0;    // left the device without a write
  uint64_t bytes_late = 0;       // the part of bytes_read that ops waited for or found cold
  uint64_t disk_bytes_read = 0;  // below host memory
  uint64_t disk_bytes_written = 0;
  uint64_t over_budget_bytes = 0;  // the most by which the budget was exceeded
  /// Whether every tensor ended the period where it was at its start, as many fetches wait for room
  /// as then, and no link is further behind.
  bool is_steady = false;
  std::vector<uint64_t> begin_ns;  // when each op began to compute, since the start of the period
  std::vector<uint64_t> stall_ns;  // how long each op waited before it computed
  /// By op: the most bytes on the device from the end of the op before it to its own end.
  std::vector<uint64_t> used_bytes;
  /// Every departure of the period, planned or not, and the return that followed it.
  std::vector<PlannedMove> moves;
  /// What the links carry in the period, in the order of the requests. The list includes what was
  /// under way when the period began; what is under way at the period's end ends after it. An
  /// eviction that was called off still takes its time on the link.
  std::vector<Migration> migrations;

  uint64_t total_stall_ns() const { return step_ns - compute_ns - work_ns; }
  /// Whether ops wait so long that it counts.
  bool has_stalls() const { return total_stall_ns() > compute_ns / kStepParts; }
};

class TraceIndex;

struct Planned {
  Plan plan;
  Simulation simulation;  // of the plan
};

/// Whether the left plan is the better one: it exceeds the budget less, then takes less time, then
/// is late with fewer bytes, then moves fewer.
bool is_better(const Simulation& left, const Simulation& right);

/// REQUIRES: trace.validate() is ok and the plan's numbers are the trace's. Whoever plays a trace
/// more than once makes its index once.
Simulation simulate(const TraceIndex& index, const Plan& plan, const Machine& machine);

}  // namespace tencache
