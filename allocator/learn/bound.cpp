// SPDX-License-Identifier: Apache-2.0
#include "learn/bound.h"

#include <algorithm>
#include <compare>
#include <set>
#include <utility>
#include <vector>

#include "learn/trace_index.h"
#include "learn/window_bound.h"

namespace tencache {
namespace {

// At most this many repetitions are played. Usually the third ends as the second did, and no more
// are needed.
constexpr uint32_t kRepetitionsPlayedMax = 64;

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

  // The rule reads least in the long run. Once a repetition ends as an earlier one did, what was
  // read between the two is the long run. If none does, a schedule that began with the budget full
  // of other bytes could have read less by that much.
  uint64_t bytes_read_per_period() {
    std::vector<State> states;
    std::vector<uint64_t> read_bytes;  // until the end of each
    for (uint32_t repetition = 0; repetition < kRepetitionsPlayedMax; ++repetition) {
      play(repetition);
      State state = this->state();
      for (uint32_t earlier = repetition; earlier-- > 0;) {
        if (states[earlier] != state) continue;
        return (read_bytes_ - read_bytes[earlier]) / (repetition - earlier);
      }
      states.push_back(std::move(state));
      read_bytes.push_back(read_bytes_);
    }
    return (read_bytes_ - std::min(read_bytes_, budget_bytes_)) / kRepetitionsPlayedMax;
  }

 private:
  /// Each gap that has begun, in the order of their ends, with the bytes that are gone.
  using State = std::vector<std::pair<uint32_t, uint64_t>>;

  /// A gap that has begun. Gaps are sorted by their last ticks, counted over all repetitions.
  struct Running {
    uint64_t end_tick;
    uint32_t number;  // tells apart gaps with the same end
    uint32_t gap;
    auto operator<=>(const Running&) const = default;
  };

  void play(uint64_t repetition) {
    const uint64_t count = trace_.tick_count();
    for (uint64_t tick = repetition * count; tick < (repetition + 1) * count; ++tick) {
      end_gaps(tick);
      for (const uint32_t index : starting_[tick % count]) begin_gap(tick, index);
      const uint64_t bytes = bytes_by_tick_[tick % count];
      if (bytes > budget_bytes_ + away_bytes_) push_out(bytes - budget_bytes_ - away_bytes_);
    }
  }

  State state() const {
    State state;
    state.reserve(all_.size());
    for (const Running& running : all_)
      state.emplace_back(running.gap, gone_bytes_[running.number]);
    return state;
  }

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
      move_out(running, gap.bytes);
    }
  }

  void end_gaps(uint64_t tick) {
    while (!all_.empty() && all_.begin()->end_tick < tick) {
      const Running running = *all_.begin();
      all_.erase(all_.begin());
      with_room_.erase(running);
      const uint64_t bytes = gone_bytes_[running.number];
      away_bytes_ -= bytes;
      if (gaps_[running.gap].comes_back()) read_bytes_ += bytes;
    }
  }

  void push_out(uint64_t bytes) {
    while (bytes > 0 && !with_room_.empty()) {
      const Running last = *with_room_.rbegin();
      const uint64_t all = gaps_[last.gap].bytes;
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

// The most processor time that reading and writing can cause while the link to the device is busy,
// over that time. Neither direction of a half-duplex link is faster than it is alone.
double work_of_busy_link(const Machine& machine) {
  const double reading = 1e-9 * machine.read_bytes_per_s * machine.read_work_ns_per_byte;
  const double writing = 1e-9 * machine.write_bytes_per_s * machine.write_work_ns_per_byte;
  if (!machine.is_half_duplex) return reading + writing;
  const double share_of_other = std::min(machine.gain_of_both, 2.0) - 1;
  return std::max(reading, writing) + share_of_other * std::min(reading, writing);
}

}  // namespace

uint64_t bound_bytes_read(const Trace& trace, uint64_t budget_bytes) {
  return FractionalBelady(trace, budget_bytes).bytes_read_per_period();
}

uint64_t bound_step_ns(const Trace& trace, const Machine& machine) {
  const uint64_t read_bytes = bound_bytes_read(trace, machine.budget_bytes);
  const uint64_t read_ns = transfer_ns(read_bytes, machine.read_bytes_per_s);
  // A burst may lie across the border of the period, where an optimizer's step follows the end of
  // the backward pass.
  const TraceIndex index(trace);
  const double share = 1 - std::min(1.0, work_of_busy_link(machine));
  WindowTimes windows = longest_windows(index, machine, 0, share);
  windows.take_longer(longest_windows(index, machine, trace.tick_count() / 2, share));
  const auto write_bytes = static_cast<uint64_t>(1e-9 * static_cast<double>(windows.write_ns) *
                                                 machine.write_bytes_per_s);
  const uint64_t move_work_ns = machine.work_ns(read_bytes, write_bytes, 0);
  const uint64_t work_ns =
      machine.work_ns(read_bytes, write_bytes, std::max(read_bytes, write_bytes));
  uint64_t step_ns = std::max({read_ns, windows.step_ns, trace.compute_ns() + work_ns,
                               move_work_ns + windows.beside_work_ns});
  if (machine.is_half_duplex) {
    step_ns = std::max(step_ns, machine.both_ns(read_ns, windows.write_ns));
  }
  if (machine.host_bytes > 0) {
    const uint64_t room_bytes = machine.budget_bytes + machine.host_bytes;
    step_ns = std::max(
        step_ns, transfer_ns(bound_bytes_read(trace, room_bytes), machine.disk_read_bytes_per_s));
  }
  return step_ns;
}

}  // namespace tencache
