// SPDX-License-Identifier: Apache-2.0
//
// longest_windows: how long consecutive windows of a period take at least, under any schedule. A
// window is a sequence of ticks. It lasts from the end of the op before its first tick to the end
// of its last op. What it names and what it writes decide how many bytes must pass each link in it
// (bound.h has the proof). Windows that follow each other do not overlap, so their times add up,
// and the longest sequence of them is found by dynamic programming over at most kBordersMax
// borders.
//
// The windows go from one tick of the period round to the same tick of the next period; none
// reaches across that place.
//
// longest_windows() is a pure function; its time is linear in the accesses of the trace times
// kBordersMax.
#pragma once

#include <algorithm>
#include <cstdint>

#include "learn/plan.h"
#include "learn/trace.h"
#include "learn/trace_index.h"

namespace tencache {

/// The longest times that any sequence of consecutive windows takes. Each is a maximum by itself,
/// so they may come from different sequences.
struct WindowTimes {
  uint64_t step_ns = 0;  // computing or the slowest link of each window, whichever takes longer
  // The same with only the share of the links' time that is free of processor time. It comes beside
  // the processor time of what moves.
  uint64_t beside_work_ns = 0;
  uint64_t write_ns = 0;  // writing from the device alone

  /// Takes each of the times that is longer in `other`.
  void take_longer(const WindowTimes& other) {
    step_ns = std::max(step_ns, other.step_ns);
    beside_work_ns = std::max(beside_work_ns, other.beside_work_ns);
    write_ns = std::max(write_ns, other.write_ns);
  }
};

/// The windows go from tick `begin` round to that tick again. `share_without_work` is the share of
/// a link's time, from 0 to 1, that is free of processor time however much the link carries.
/// REQUIRES: what make_plan() requires.
WindowTimes longest_windows(const TraceIndex& index, const Machine& machine, Tick begin,
                            double share_without_work);

}  // namespace tencache
