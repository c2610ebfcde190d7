// SPDX-License-Identifier: Apache-2.0
//
// Trace: one period of a program, for example a training step. It holds the ops in order, which
// tensors each reads and writes, how long each computes, and when tensors come and go. It repeats
// for ever: after the last tick comes the first. It is a value type without pointers into the
// running program, so planner and simulator are functions of it, and it can be stored.
//
// A tick is the number of an op in the period. A tensor that is allocated at tick a and freed at
// tick f is there from the start of op a to the end of op f, inclusive; f < a if it is freed in the
// next repetition (gradients, say). A tensor without those ticks is always there (parameters).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace tencache {

using Tick = uint32_t;
inline constexpr Tick kNoTick = ~Tick{0};

struct TraceAccess {
  uint32_t tensor = 0;
  bool is_write = false;
};

struct TraceOp {
  uint32_t name = 0;        // in Trace::op_names
  uint64_t compute_ns = 0;  // to the start of the next op, without waiting for memory
  std::vector<TraceAccess> accesses;
};

struct TraceTensor {
  uint64_t bytes = 0;
  Tick allocated_at = kNoTick;
  Tick freed_at = kNoTick;

  bool is_persistent() const { return allocated_at == kNoTick; }
};

struct Trace {
  std::vector<std::string> op_names;
  std::vector<TraceOp> ops;
  std::vector<TraceTensor> tensors;
  uint64_t fixed_bytes = 0;  // on the device all the time: what cannot leave

  Tick tick_count() const { return static_cast<Tick>(ops.size()); }
  /// How many ticks it is from one to another, which is in the next repetition if `to` < `from`.
  /// From a tick to itself it is 0. Either may be the end, tick_count(), which is tick 0 of the
  /// next repetition.
  Tick ticks_from(Tick from, Tick to) const { return (to + tick_count() - from) % tick_count(); }
  uint64_t compute_ns() const;

  /// Returns kInvalidArgument with the first thing that is wrong: no ops, an impossible tensor, an
  /// unknown name or tensor, or an access outside of a tensor's life.
  Status validate() const;
  /// Bytes that exist at each tick, wherever they are, including the fixed bytes.
  std::vector<uint64_t> bytes_by_tick() const;
  /// The most bytes that exist at one tick. With this budget nothing ever has to leave.
  uint64_t peak_bytes() const;
  /// The bytes of the tensors that do not outlive a repetition.
  uint64_t transient_bytes() const;
  /// The smallest budget that is never exceeded: what the most demanding op names and allocates,
  /// besides the bytes that never leave (fixed ones, and tensors that no op names).
  uint64_t largest_op_bytes() const;
};

/// A time in which a tensor is there but no op names it, so it could be elsewhere. It lasts from
/// the end of op `after` to the start of op `before`, which is in the next repetition when before
/// <= after.
struct Gap {
  uint32_t tensor = 0;
  uint64_t bytes = 0;  // of the tensor
  Tick after = 0;
  Tick before = kNoTick;     // kNoTick: it is freed, unused, after `until`
  Tick until = 0;            // the last tick of the gap
  bool was_written = false;  // between the tensor's previous gap and this one

  bool comes_back() const { return before != kNoTick; }
  bool wraps() const { return until < after; }
};

/// Every gap of at least one tick, tensor by tensor, in order of time.
std::vector<Gap> gaps_of(const Trace& trace);

/// The ticks at which each tensor is named or allocated, ascending, without repetition.
std::vector<std::vector<Tick>> uses_by_tensor(const Trace& trace);

}  // namespace tencache
