// SPDX-License-Identifier: Apache-2.0
#include "learn/window_bound.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace tencache {
namespace {

// There are at most this many borders of windows, so that looking at all windows stays cheap.
constexpr uint32_t kBordersMax = 256;
constexpr uint32_t kBordersOfAKind = kBordersMax / 3;

uint64_t rest(uint64_t bytes, uint64_t taken) { return bytes - std::min(bytes, taken); }

// The fixed bytes, and those of the tensors that no op names. Such a tensor cannot leave, because
// the gate does not know it.
uint64_t bytes_that_never_leave(const TraceIndex& index) {
  const Trace& trace = index.trace();
  uint64_t bytes = trace.fixed_bytes;
  for (uint32_t tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    if (!index.uses().is_named(tensor)) bytes += trace.tensors[tensor].bytes;
  }
  return bytes;
}

/// One window at a time: it begins, and is then extended from border to border.
class Windows {
 public:
  Windows(const TraceIndex& index, const Machine& machine, Tick begin, double share_without_work)
      : index_(index),
        trace_(index.trace()),
        machine_(machine),
        begin_(begin),
        share_without_work_(share_without_work),
        // An op that names more than the budget exceeds it, and what it named may stay.
        budget_bytes_(std::max(machine.budget_bytes, trace_.largest_op_bytes())),
        fixed_bytes_(bytes_that_never_leave(index)),
        seen_in_(trace_.tensors.size(), 0),
        held_by_(trace_.tensors.size(), 0),
        written_in_(trace_.tensors.size(), 0),
        counted_by_(trace_.tensors.size(), 0) {
    choose_borders();
  }

  WindowTimes longest() {
    std::vector<WindowTimes> least(borders_.size());  // the least times to each border
    for (size_t first = 0; first + 1 < borders_.size(); ++first) {
      begin_window(borders_[first]);
      for (size_t last = first; last + 1 < borders_.size(); ++last) {
        extend_window(borders_[last], borders_[last + 1]);
        const WindowTimes window = times();
        least[last + 1].take_longer({least[first].step_ns + window.step_ns,
                                     least[first].beside_work_ns + window.beside_work_ns,
                                     least[first].write_ns + window.write_ns});
      }
    }
    return least.back();
  }

 private:
  // Borders are of three kinds, at most a third each: where the number of existing bytes peaks or
  // bottoms out, after the ops that name most, and at equal distances. Bursts begin and end at
  // borders of the first kind.
  void choose_borders() {
    const uint32_t count = trace_.tick_count();
    add_turns();
    add_largest_ops();
    const uint32_t distance = count / kBordersOfAKind + 1;
    for (uint32_t place = 0; place < count; place += distance) borders_.push_back(place);
    borders_.push_back(count);
    std::sort(borders_.begin(), borders_.end());
    borders_.erase(std::unique(borders_.begin(), borders_.end()), borders_.end());
  }

  void add_largest_ops() {
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
    const uint32_t largest = std::min(count, kBordersOfAKind);
    std::partial_sort(ends.begin(), ends.begin() + largest, ends.end(), std::greater<>());
    for (uint32_t index = 0; index < largest; ++index) borders_.push_back(ends[index].second);
  }

  // Adds as many turns as there may be borders of a kind, the largest ones.
  void add_turns() {
    const std::vector<uint64_t> by_tick = trace_.bytes_by_tick();
    const auto [least, most] = std::minmax_element(by_tick.begin(), by_tick.end());
    std::vector<uint32_t> turns;
    for (uint64_t swing = (*most - *least) / 2; swing > 0; swing /= 2) {
      std::vector<uint32_t> finer = turns_of(by_tick, swing);
      if (finer.size() > kBordersOfAKind) break;
      turns = std::move(finer);
    }
    borders_.insert(borders_.end(), turns.begin(), turns.end());
  }

  // The places after which the bytes that exist fall, or grow, by that swing at least.
  std::vector<uint32_t> turns_of(const std::vector<uint64_t>& by_tick, uint64_t swing) const {
    const uint32_t count = trace_.tick_count();
    std::vector<uint32_t> turns;
    bool grows = true;
    uint32_t extreme = 0;  // the place of the most bytes since the last turn, or of the fewest
    uint64_t extreme_bytes = by_tick[begin_];
    for (uint32_t place = 1; place < count; ++place) {
      const uint64_t bytes = by_tick[tick_at(place)];
      const bool goes_on = grows ? bytes > extreme_bytes : bytes < extreme_bytes;
      const uint64_t back = grows ? rest(extreme_bytes, bytes) : rest(bytes, extreme_bytes);
      if (!goes_on && back < swing) continue;
      if (!goes_on) {
        turns.push_back(extreme + 1);
        grows = !grows;
      }
      extreme = place;
      extreme_bytes = bytes;
    }
    return turns;
  }

  Tick tick_at(uint32_t place) const { return (begin_ + place) % trace_.tick_count(); }
  const TraceOp& op_at(uint32_t place) const { return trace_.ops[tick_at(place)]; }

  void begin_window(uint32_t first_place) {
    ++window_;
    first_place_ = last_place_ = first_place;
    compute_ns_ = named_bytes_ = held_bytes_ = written_bytes_ = 0;
    for (const TraceAccess& access : op_at(first_place + trace_.tick_count() - 1).accesses) {
      if (std::exchange(held_by_[access.tensor], window_) == window_) continue;
      held_bytes_ += trace_.tensors[access.tensor].bytes;
    }
  }

  void extend_window(uint32_t from_place, uint32_t to_place) {
    for (uint32_t place = from_place; place < to_place; ++place) {
      if (place > first_place_) forget_freed(place - 1);
      for (const uint32_t tensor : index_.born_at(tick_at(place))) write(tensor);
      const TraceOp& op = op_at(place);
      compute_ns_ += op.compute_ns;
      for (const TraceAccess& access : op.accesses) {
        name(access.tensor, place);
        if (access.is_write) write(access.tensor);
      }
    }
    last_place_ = to_place - 1;
  }

  // Takes off the written tensors that are freed after this op of the window. They are nowhere when
  // the window ends.
  void forget_freed(uint32_t place) {
    for (const uint32_t tensor : index_.freed_at(tick_at(place))) {
      if (written_in_[tensor] != window_) continue;
      written_in_[tensor] = 0;
      written_bytes_ -= trace_.tensors[tensor].bytes;
    }
  }

  void write(uint32_t tensor) {
    if (std::exchange(written_in_[tensor], window_) == window_) return;
    written_bytes_ += trace_.tensors[tensor].bytes;
  }

  // Counts a tensor that the window names. One that is allocated in the window is not read in it,
  // and does not count.
  void name(uint32_t tensor, uint32_t place) {
    if (std::exchange(seen_in_[tensor], window_) == window_) return;
    const TraceTensor& life = trace_.tensors[tensor];
    const bool is_born_in_it = !life.is_persistent() &&
                               trace_.ticks_from(begin_, life.allocated_at) >= first_place_ &&
                               trace_.ticks_from(begin_, life.allocated_at) <= place;
    if (is_born_in_it) return;
    named_bytes_ += life.bytes;
    if (held_by_[tensor] == window_) held_bytes_ -= life.bytes;
  }

  // The bytes that the last op names and the window did not write.
  uint64_t held_at_end() {
    ++count_;
    uint64_t bytes = 0;
    for (const TraceAccess& access : op_at(last_place_).accesses) {
      if (written_in_[access.tensor] == window_) continue;
      if (std::exchange(counted_by_[access.tensor], count_) == count_) continue;
      bytes += trace_.tensors[access.tensor].bytes;
    }
    return bytes;
  }

  WindowTimes times() {
    const uint64_t in_the_way = fixed_bytes_ + held_bytes_;
    const uint64_t in_the_way_at_end = fixed_bytes_ + held_at_end();
    const auto read_bytes = [&](uint64_t room_bytes) {
      return rest(named_bytes_, rest(room_bytes, in_the_way));
    };
    const auto written_bytes = [&](uint64_t room_bytes) {
      return rest(written_bytes_, rest(room_bytes, in_the_way_at_end));
    };
    const Passing device{transfer_ns(read_bytes(budget_bytes_), machine_.read_bytes_per_s),
                         transfer_ns(written_bytes(budget_bytes_), machine_.write_bytes_per_s)};
    Passing disk;
    if (machine_.host_bytes > 0) {
      const uint64_t room_bytes = budget_bytes_ + machine_.host_bytes;
      disk = {transfer_ns(read_bytes(room_bytes), machine_.disk_read_bytes_per_s),
              transfer_ns(written_bytes(room_bytes), machine_.disk_write_bytes_per_s)};
    }
    return {duration_ns(device, disk),
            duration_ns(device.times(share_without_work_), disk.times(share_without_work_)),
            device.write_ns};
  }

  /// How long the bytes that must pass a link in the window take it.
  struct Passing {
    uint64_t read_ns = 0;
    uint64_t write_ns = 0;

    Passing times(double share) const {
      return {static_cast<uint64_t>(share * static_cast<double>(read_ns)),
              static_cast<uint64_t>(share * static_cast<double>(write_ns))};
    }
  };

  uint64_t duration_ns(const Passing& device, const Passing& disk) const {
    uint64_t ns = std::max({compute_ns_, with_computing(device), with_computing(disk)});
    if (machine_.is_half_duplex) {
      ns = std::max(ns, machine_.both_ns(device.read_ns, device.write_ns));
    }
    return ns;
  }

  // The longer of two times: the reads and then the last op, which computes when all is read; or
  // the first op and then the writes, none of which leaves before that op ends.
  uint64_t with_computing(const Passing& link) const {
    return std::max(link.read_ns == 0 ? 0 : link.read_ns + op_at(last_place_).compute_ns,
                    link.write_ns == 0 ? 0 : link.write_ns + op_at(first_place_).compute_ns);
  }

  const TraceIndex& index_;
  const Trace& trace_;
  const Machine& machine_;
  const Tick begin_;  // places count from here
  const double share_without_work_;
  const uint64_t budget_bytes_;
  const uint64_t fixed_bytes_;
  std::vector<uint32_t> borders_;     // where a window may begin or end, in order
  std::vector<uint32_t> seen_in_;     // the last window that named each tensor
  std::vector<uint32_t> held_by_;     // the last window that a naming op directly precedes
  std::vector<uint32_t> written_in_;  // the last window that wrote it; 0 once it is freed
  std::vector<uint32_t> counted_by_;  // the last count that met it
  uint32_t window_ = 0;
  uint32_t count_ = 0;
  uint32_t first_place_ = 0;  // of the window
  uint32_t last_place_ = 0;
  uint64_t compute_ns_ = 0;     // of the window
  uint64_t named_bytes_ = 0;    // named in it, not allocated in it
  uint64_t held_bytes_ = 0;     // named by the op before it, but not in it
  uint64_t written_bytes_ = 0;  // written or allocated in it, and there when its last op ends
};

}  // namespace

WindowTimes longest_windows(const TraceIndex& index, const Machine& machine, Tick begin,
                            double share_without_work) {
  return Windows(index, machine, begin, share_without_work).longest();
}

}  // namespace tencache
