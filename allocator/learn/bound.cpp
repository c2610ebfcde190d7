// SPDX-License-Identifier: Apache-2.0
#include "learn/bound.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <vector>

namespace tencache {
namespace {

// At most this many borders of windows, so that looking at all windows stays cheap.
constexpr uint32_t kWindowBordersMax = 256;
// How many repetitions are played. Those after the warm-up show the steady state.
constexpr uint32_t kPeriods = 4;
constexpr uint32_t kWarmUpPeriods = 2;

class FractionalBelady {
 public:
  FractionalBelady(const Trace& trace, uint64_t budget_bytes)
      : trace_(trace),
        gaps_(gaps_of(trace)),
        bytes_by_tick_(trace.bytes_by_tick()),
        starting_(trace.tick_count()),
        budget_bytes_(budget_bytes) {
    for (uint32_t index = 0; index < gaps_.size(); ++index) {
      starting_[(gaps_[index].after + 1) % trace.tick_count()].push_back(index);
    }
  }

  uint64_t bytes_read_per_period() {
    const uint64_t count = trace_.tick_count();
    for (uint64_t tick = 0; tick < count * kPeriods; ++tick) {
      end_gaps(tick);
      for (const uint32_t index : starting_[tick % count]) begin_gap(tick, index);
      const uint64_t bytes = bytes_by_tick_[tick % count];
      if (bytes > budget_bytes_ + away_bytes_) push_out(bytes - budget_bytes_ - away_bytes_);
    }
    return read_bytes_ / (kPeriods - kWarmUpPeriods);
  }

 private:
  /// A gap that has begun, sorted by its last tick, unrolled.
  struct Running {
    uint64_t end_tick;
    uint32_t number;  // tells apart gaps with the same end
    uint32_t gap;
    bool operator<(const Running& other) const {
      return std::pair(end_tick, number) < std::pair(other.end_tick, other.number);
    }
  };

  void begin_gap(uint64_t tick, uint32_t index) {
    const Gap& gap = gaps_[index];
    const uint64_t count = trace_.tick_count();
    const uint64_t length = (gap.until + count - (gap.after + 1) % count) % count + 1;
    const Running running{tick + length - 1, next_number_++, index};
    gone_bytes_.push_back(0);
    all_.insert(running);
    if (gap.comes_back()) {
      with_room_.insert(running);
    } else {
      move_out(running, trace_.tensors[gap.tensor].bytes);
    }
  }

  void end_gaps(uint64_t tick) {
    while (!all_.empty() && all_.begin()->end_tick < tick) {
      const Running running = *all_.begin();
      all_.erase(all_.begin());
      with_room_.erase(running);
      const uint64_t bytes = gone_bytes_[running.number];
      away_bytes_ -= bytes;
      const bool counts = tick >= uint64_t{trace_.tick_count()} * kWarmUpPeriods;
      if (counts && gaps_[running.gap].comes_back()) read_bytes_ += bytes;
    }
  }

  void push_out(uint64_t bytes) {
    while (bytes > 0 && !with_room_.empty()) {
      const Running last = *with_room_.rbegin();
      const uint64_t all = trace_.tensors[gaps_[last.gap].tensor].bytes;
      const uint64_t moved = std::min(bytes, all - gone_bytes_[last.number]);
      move_out(last, moved);
      bytes -= moved;
      if (gone_bytes_[last.number] == all) with_room_.erase(last);
    }
  }

  void move_out(const Running& running, uint64_t bytes) {
    gone_bytes_[running.number] += bytes;
    away_bytes_ += bytes;
  }

  const Trace& trace_;
  const std::vector<Gap> gaps_;
  const std::vector<uint64_t> bytes_by_tick_;
  std::vector<std::vector<uint32_t>> starting_;  // by tick
  const uint64_t budget_bytes_;
  std::set<Running> all_;
  std::set<Running> with_room_;       // those that may still leave, at least in part
  std::vector<uint64_t> gone_bytes_;  // by number
  uint32_t next_number_ = 0;
  uint64_t away_bytes_ = 0;
  uint64_t read_bytes_ = 0;
};

/// The longest time that consecutive windows of a period take. A window is a row of ticks. Whatever
/// its ticks name must be present in it, but when it began, no more than the budget was present,
/// including what the op before it named. The period is read from one of its ticks round to the
/// same tick of the next one; no window reaches across that place.
class Bursts {
 public:
  Bursts(const Trace& trace, const Machine& machine, Tick begin)
      : trace_(trace),
        begin_(begin),
        // An op that names more than the budget exceeds it, and what it named may stay.
        budget_bytes_(std::max(machine.budget_bytes, trace.largest_op_bytes())),
        read_bytes_per_s_(machine.read_bytes_per_s),
        seen_in_(trace.tensors.size(), 0),
        held_by_(trace.tensors.size(), 0) {
    choose_borders();
  }

  uint64_t step_ns() {
    std::vector<uint64_t> least_ns(borders_.size(), 0);  // the least time to each border
    for (size_t first = 0; first + 1 < borders_.size(); ++first) {
      begin_window(borders_[first]);
      for (size_t last = first; last + 1 < borders_.size(); ++last) {
        extend_window(borders_[last], borders_[last + 1]);
        least_ns[last + 1] = std::max(least_ns[last + 1], least_ns[first] + window_ns());
      }
    }
    return least_ns.back();
  }

 private:
  // Half of the borders stand at equal distances, the others after the ops that name most.
  void choose_borders() {
    const uint32_t count = trace_.tick_count();
    std::vector<std::pair<uint64_t, uint32_t>> ends;  // bytes that an op names, place of its end
    ends.reserve(count);
    for (uint32_t place = 0; place < count; ++place) {
      uint64_t bytes = 0;
      for (const TraceAccess& access : op_at(place).accesses) {
        bytes += trace_.tensors[access.tensor].bytes;
      }
      ends.emplace_back(bytes, place + 1);
    }
    const uint32_t largest = std::min(count, kWindowBordersMax / 2);
    std::partial_sort(ends.begin(), ends.begin() + largest, ends.end(), std::greater<>());
    for (uint32_t index = 0; index < largest; ++index) borders_.push_back(ends[index].second);
    const uint32_t distance = count / (kWindowBordersMax / 2) + 1;
    for (uint32_t place = 0; place < count; place += distance) borders_.push_back(place);
    borders_.push_back(count);
    std::sort(borders_.begin(), borders_.end());
    borders_.erase(std::unique(borders_.begin(), borders_.end()), borders_.end());
  }

  const TraceOp& op_at(uint32_t place) const {
    return trace_.ops[(begin_ + place) % trace_.tick_count()];
  }

  void begin_window(uint32_t first_place) {
    ++window_;
    first_place_ = first_place;
    compute_ns_ = 0;
    named_bytes_ = trace_.fixed_bytes;
    held_bytes_ = 0;
    for (const TraceAccess& access : op_at(first_place + trace_.tick_count() - 1).accesses) {
      if (held_by_[access.tensor] == window_) continue;
      held_by_[access.tensor] = window_;
      held_bytes_ += trace_.tensors[access.tensor].bytes;
    }
  }

  void extend_window(uint32_t from_place, uint32_t to_place) {
    for (uint32_t place = from_place; place < to_place; ++place) {
      const TraceOp& op = op_at(place);
      compute_ns_ += op.compute_ns;
      for (const TraceAccess& access : op.accesses) name(access.tensor, place);
    }
  }

  // What is allocated in the window is not read in it.
  void name(uint32_t tensor, uint32_t place) {
    if (seen_in_[tensor] == window_) return;
    seen_in_[tensor] = window_;
    const TraceTensor& life = trace_.tensors[tensor];
    const bool is_born_in_it = !life.is_persistent() &&
                               place_of(life.allocated_at) >= first_place_ &&
                               place_of(life.allocated_at) <= place;
    if (is_born_in_it) return;
    named_bytes_ += life.bytes;
    if (held_by_[tensor] == window_) held_bytes_ -= life.bytes;
  }

  uint32_t place_of(Tick tick) const {
    return (tick + trace_.tick_count() - begin_) % trace_.tick_count();
  }

  uint64_t window_ns() const {
    const uint64_t there_bytes = budget_bytes_ - std::min(held_bytes_, budget_bytes_);
    if (named_bytes_ <= there_bytes) return compute_ns_;
    const auto bytes = static_cast<double>(named_bytes_ - there_bytes);
    return std::max(compute_ns_, static_cast<uint64_t>(bytes / read_bytes_per_s_ * 1e9));
  }

  const Trace& trace_;
  const Tick begin_;  // places count from here
  const uint64_t budget_bytes_;
  const double read_bytes_per_s_;
  std::vector<uint32_t> borders_;  // places where a window may begin or end, in order
  std::vector<uint32_t> seen_in_;  // the last window that named each tensor
  std::vector<uint32_t> held_by_;  // the last window that a naming op directly precedes
  uint32_t window_ = 0;
  uint32_t first_place_ = 0;  // of the window
  uint64_t compute_ns_ = 0;   // of the window
  uint64_t named_bytes_ = 0;  // named in it, not allocated in it
  uint64_t held_bytes_ = 0;   // named by the op before it, but not in it
};

}  // namespace

uint64_t bound_bytes_read(const Trace& trace, uint64_t budget_bytes) {
  return FractionalBelady(trace, budget_bytes).bytes_read_per_period();
}

uint64_t bound_step_ns(const Trace& trace, const Machine& machine) {
  const double read_ns = static_cast<double>(bound_bytes_read(trace, machine.budget_bytes)) /
                         machine.read_bytes_per_s * 1e9;
  // A burst may lie across the border of the period, where an optimizer's step follows the end of
  // the backward pass.
  return std::max({static_cast<uint64_t>(read_ns), Bursts(trace, machine, 0).step_ns(),
                   Bursts(trace, machine, trace.tick_count() / 2).step_ns()});
}

}  // namespace tencache
