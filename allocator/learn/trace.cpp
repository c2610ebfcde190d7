// SPDX-License-Identifier: Apache-2.0
#include "learn/trace.h"

#include <algorithm>
#include <numeric>

namespace tencache {
namespace {

bool is_alive(const TraceTensor& tensor, Tick tick) {
  if (tensor.is_persistent()) return true;
  if (tensor.allocated_at <= tensor.freed_at) {
    return tensor.allocated_at <= tick && tick <= tensor.freed_at;
  }
  return tick >= tensor.allocated_at || tick <= tensor.freed_at;
}

struct Use {
  Tick tick = 0;
  bool is_write = false;
};

std::vector<std::vector<Use>> collect_uses(const Trace& trace) {
  std::vector<std::vector<Use>> uses(trace.tensors.size());
  for (Tick tick = 0; tick < trace.tick_count(); ++tick) {
    for (const TraceAccess& access : trace.ops[tick].accesses) {
      std::vector<Use>& of_tensor = uses[access.tensor];
      if (of_tensor.empty() || of_tensor.back().tick != tick) of_tensor.push_back({tick, false});
      of_tensor.back().is_write |= access.is_write;
    }
  }
  for (size_t index = 0; index < uses.size(); ++index) {
    const TraceTensor& tensor = trace.tensors[index];
    if (tensor.is_persistent()) continue;
    // The op that allocates a tensor fills it, whether the op names it or not.
    std::vector<Use>& of_tensor = uses[index];
    const auto place = std::ranges::lower_bound(of_tensor, tensor.allocated_at, {}, &Use::tick);
    if (place != of_tensor.end() && place->tick == tensor.allocated_at) {
      place->is_write = true;
    } else {
      of_tensor.insert(place, {tensor.allocated_at, true});
    }
  }
  return uses;
}

// Rotates the uses so that they begin where the tensor is allocated.
void rotate_to_birth(const TraceTensor& tensor, std::vector<Use>* uses) {
  if (tensor.is_persistent()) return;
  const auto birth = std::ranges::find(*uses, tensor.allocated_at, &Use::tick);
  std::rotate(uses->begin(), birth, uses->end());
}

}  // namespace

uint64_t Trace::compute_ns() const {
  uint64_t sum = 0;
  for (const TraceOp& op : ops) sum += op.compute_ns;
  return sum;
}

Status Trace::validate() const {
  const auto invalid = [](std::string text) {
    return Status(StatusCode::kInvalidArgument, "trace: " + std::move(text));
  };
  if (ops.empty()) return invalid("it has no ops");
  for (size_t index = 0; index < tensors.size(); ++index) {
    const TraceTensor& tensor = tensors[index];
    const bool is_whole = (tensor.allocated_at == kNoTick) == (tensor.freed_at == kNoTick);
    const bool is_inside = tensor.is_persistent() ||
                           (tensor.allocated_at < ops.size() && tensor.freed_at < ops.size());
    if (!is_whole || !is_inside || tensor.bytes == 0) {
      return invalid("tensor " + std::to_string(index) + " has no bytes or an impossible life");
    }
  }
  for (size_t tick = 0; tick < ops.size(); ++tick) {
    const std::string where = " at tick " + std::to_string(tick);
    if (ops[tick].name >= op_names.size()) return invalid("an op without a name" + where);
    for (const TraceAccess& access : ops[tick].accesses) {
      if (access.tensor >= tensors.size()) return invalid("access to an unknown tensor" + where);
      if (!is_alive(tensors[access.tensor], static_cast<Tick>(tick))) {
        return invalid("access to tensor " + std::to_string(access.tensor) +
                       " outside of its life" + where);
      }
    }
  }
  return Status::ok();
}

std::vector<uint64_t> Trace::bytes_by_tick() const {
  // The vector first holds differences, then their running sum; unsigned arithmetic wraps back by
  // itself.
  std::vector<uint64_t> bytes(ops.size() + 1, 0);
  bytes[0] = fixed_bytes;
  for (const TraceTensor& tensor : tensors) {
    if (tensor.is_persistent() || tensor.freed_at < tensor.allocated_at) bytes[0] += tensor.bytes;
    if (tensor.is_persistent()) continue;
    bytes[tensor.allocated_at] += tensor.bytes;
    bytes[tensor.freed_at + 1] -= tensor.bytes;
  }
  std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
  bytes.pop_back();
  return bytes;
}

uint64_t Trace::peak_bytes() const { return std::ranges::max(bytes_by_tick()); }

uint64_t Trace::transient_bytes() const {
  uint64_t bytes = 0;
  for (const TraceTensor& tensor : tensors) {
    if (!tensor.is_persistent()) bytes += tensor.bytes;
  }
  return bytes;
}

uint64_t Trace::largest_op_bytes() const {
  uint64_t resident_bytes = fixed_bytes;
  std::vector<uint64_t> bytes(ops.size(), 0);
  const std::vector<std::vector<Tick>> uses = uses_by_tensor(*this);
  for (size_t index = 0; index < tensors.size(); ++index) {
    if (uses[index].empty()) resident_bytes += tensors[index].bytes;
    for (const Tick tick : uses[index]) bytes[tick] += tensors[index].bytes;
  }
  return resident_bytes + std::ranges::max(bytes);
}

std::vector<Gap> gaps_of(const Trace& trace) {
  const Tick count = trace.tick_count();
  std::vector<Gap> gaps;
  if (count == 1) return gaps;  // the only op follows itself
  std::vector<std::vector<Use>> all_uses = collect_uses(trace);
  for (uint32_t index = 0; index < all_uses.size(); ++index) {
    const TraceTensor& tensor = trace.tensors[index];
    std::vector<Use>& uses = all_uses[index];
    if (uses.empty()) continue;  // never named: the gate does not know it
    rotate_to_birth(tensor, &uses);
    const size_t first_gap = gaps.size();
    bool was_written = false;
    for (size_t use = 0; use < uses.size(); ++use) {
      was_written |= uses[use].is_write;
      const bool is_last = use + 1 == uses.size();
      Gap gap{index, tensor.bytes, uses[use].tick, kNoTick, 0, was_written};
      if (!is_last || tensor.is_persistent()) {
        gap.before = uses[is_last ? 0 : use + 1].tick;
        gap.until = (gap.before + count - 1) % count;
      } else {
        gap.until = tensor.freed_at;
      }
      if (gap.until == gap.after) continue;  // no tick lies between
      gaps.push_back(gap);
      was_written = false;
    }
    // A tensor that was written after its last gap was written before its first one, a repetition
    // later.
    if (was_written && tensor.is_persistent() && gaps.size() > first_gap) {
      gaps[first_gap].was_written = true;
    }
  }
  return gaps;
}

std::vector<std::vector<Tick>> uses_by_tensor(const Trace& trace) {
  std::vector<std::vector<Tick>> ticks;
  for (const std::vector<Use>& uses : collect_uses(trace)) {
    std::vector<Tick>& of_tensor = ticks.emplace_back();
    of_tensor.reserve(uses.size());
    for (const Use& use : uses) of_tensor.push_back(use.tick);
  }
  return ticks;
}

}  // namespace tencache
