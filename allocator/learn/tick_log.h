// SPDX-License-Identifier: Apache-2.0
//
// TickLog: the recorder's events of all threads as one sequence of ticks. A tick is an op that
// names at least one extent; other ops only add to a tick's time. The log keeps the newest
// kTicksMax ticks, the lives of the extents that were allocated or freed meanwhile, and the step
// marks.
//
// Ticks are numbered from 0 and keep their numbers. An allocation or a free belongs to the tick
// that began last.
//
// Threads: the log belongs to one thread (the learner's).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "learn/recorder.h"
#include "learn/tick_digest.h"

namespace tencache {

inline constexpr uint64_t kTicksMax = uint64_t{1} << 17;
inline constexpr uint64_t kUnknownTick = ~uint64_t{0};

struct LoggedAccess {
  uint64_t extent_id = 0;
  uint64_t bytes = 0;
  bool is_write = false;
};

struct LoggedTick {
  uint64_t digest = 0;  // TickDigest
  uint32_t op = 0;
  uint64_t begun_at = 0;                   // a timestamp
  uint64_t wait_ns = 0;                    // waited for fetches and room from here to the next tick
  std::optional<uint64_t> device_ns = {};  // what the device computed, where that was measured
  std::vector<LoggedAccess> accesses = {};
  std::vector<uint64_t> births = {};  // the extents that were allocated in it, in order
  std::vector<uint64_t> deaths = {};  // the extents that were freed in it, in order
};

/// How long the device computed from an op to the next one of its thread, without the waits for
/// memory.
struct OpTime {
  uint64_t begun_at = 0;  // the op's timestamp, which identifies it
  uint32_t op = 0;
  uint64_t ns = 0;
};

/// When an extent was allocated and freed.
struct ExtentLife {
  uint64_t bytes = 0;
  uint64_t born = kUnknownTick;  // unknown: before the log began
  uint32_t ordinal = 0;          // among the allocations of that tick
  uint64_t freed = kUnknownTick;
};

class TickLog {
 public:
  /// Takes in events of all threads, later than those before. Lost events empty the log.
  void append(const std::vector<ThreadEvents>& threads);
  /// Adds times to ticks that were taken in; other times are dropped.
  void append_times(std::span<const OpTime> times);

  uint64_t begin() const { return first_; }
  uint64_t end() const { return first_ + ticks_.size(); }
  const LoggedTick& tick(uint64_t number) const { return ticks_[number - first_]; }
  /// The ticks at which a step ended: the first tick after each mark, ascending.
  const std::deque<uint64_t>& marks() const { return marks_; }
  /// The life of an extent. Returns null when neither its allocation nor its free was seen.
  const ExtentLife* life(uint64_t extent_id) const;
  /// Whether the extent existed before tick `since` and still does, as far as the log knows.
  bool is_older(uint64_t extent_id, uint64_t since) const;
  /// The digest of each tick from `begin` to `end`, mixed with the ids of the tick's extents for
  /// which `tells` is true.
  template <typename Tells>
  std::vector<uint64_t> identities_where(uint64_t begin, uint64_t end, Tells tells) const {
    std::vector<uint64_t> row;
    for (uint64_t number = begin; number < end; ++number) {
      uint64_t value = tick(number).digest;
      for (const LoggedAccess& access : tick(number).accesses) {
        if (tells(access.extent_id)) value = TickDigest::mix(value ^ access.extent_id);
      }
      row.push_back(value);
    }
    return row;
  }
  /// identities_where() with the extents that are older than `since`. A repetition uses the same
  /// ones, so layers that only look alike have other identities.
  std::vector<uint64_t> identities(uint64_t begin, uint64_t end, uint64_t since) const {
    return identities_where(begin, end, [&](uint64_t id) { return is_older(id, since); });
  }
  /// Extents allocated in a tick, in order.
  std::span<const uint64_t> births(uint64_t tick) const;
  /// Extents freed in a tick, in order.
  std::span<const uint64_t> deaths(uint64_t tick) const;
  /// Events that were overwritten before they were read, ever.
  uint64_t lost_count() const { return lost_count_; }

 private:
  struct OpenOp {
    uint32_t op = 0;
    uint64_t begun_at = 0;
    bool is_tick = false;  // it has a tick already
    uint64_t number = 0;
  };

  void take(uint32_t thread, const Event& event);
  void take_access(OpenOp& open, const Event& event);
  void forget_oldest();
  void clear();

  uint64_t first_ = 0;
  uint64_t lost_count_ = 0;
  std::deque<LoggedTick> ticks_;
  std::deque<uint64_t> marks_;
  std::unordered_map<uint64_t, ExtentLife> lives_;  // by extent
  std::unordered_map<uint32_t, OpenOp> open_;       // the op that began last, by thread
};

}  // namespace tencache
