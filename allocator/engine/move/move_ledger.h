// SPDX-License-Identifier: Apache-2.0
//
// MoveLedger: what the parts of one mover write down and the engine reads: how fast bytes move,
// how much is on its way ahead of use, whether a thread waits, and what came of evictions and
// fetches.
//
// Threads: any; lock-free but for the log of single moves and the duplex meter.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/stats.h"
#include "base/status.h"
#include "engine/move/duplex_meter.h"
#include "engine/move/move_rate.h"
#include "learn/move_log.h"
#include "memory/budget.h"
#include "memory/extent.h"

namespace tencache {

struct EvictionResult {
  uint64_t count = 0;
  uint64_t bytes = 0;  // of room that became free
  Status failure;      // the first one; its extents stayed resident

  void add(const EvictionResult& part) {
    count += part.count;
    bytes += part.bytes;
    if (failure.is_ok()) failure = part.failure;
  }
};

/// Fetches whose bytes were not there when an op asked for them: on demand, or ahead of use and
/// still under way. engine/gate/device_waits.h decides whether the device waited for them.
struct LateFetches {
  uint64_t count = 0;
  uint64_t bytes = 0;
};

/// An op's wait for its extents, in parts that the device times separately: the device may have
/// waited for only one of several tensors under way.
class OpWait {
 public:
  virtual ~OpWait() = default;
  /// Begins a new part, unless nothing was late in the current one.
  virtual void begin_part() = 0;
  /// Adds late fetches to the current part.
  virtual void add(const LateFetches& late) = 0;
};

/// What the ledger records of an eviction. The evicting thread copies it before the extent becomes
/// cold, because any thread may free the extent afterwards.
struct Departure {
  Departure(const Extent& extent, uint64_t claimed_at, bool copied)
      : extent_id(extent.id.load(std::memory_order_relaxed)),
        bytes(extent.bytes),
        begin(claimed_at),
        was_copied(copied),
        was_fetched_in_vain(extent.has(kFlagAhead)) {}
  uint64_t extent_id;
  uint64_t bytes;
  uint64_t begin;   // a timestamp
  bool was_copied;  // else the tier below had the bytes already
  bool was_fetched_in_vain;
};

class MoveLedger {
 public:
  MoveLedger(Stats& engine_stats, const Budget& device_budget)
      : stats(engine_stats), budget_(device_budget) {}
  MoveLedger(const MoveLedger&) = delete;
  MoveLedger& operator=(const MoveLedger&) = delete;

  /// Call when an op asks for an extent whose bytes are there. If a fetch ahead of use brought
  /// them, that came early. The first op that asks decides.
  void count_early(Extent* extent);
  /// Call when an op asks for an extent whose bytes are still under way.
  static void note_late(Extent* extent, LateFetches* late);
  void count_departure(const Departure& departure, EvictionResult* result);
  /// Notes a move that ends now, for the trace.
  void log_move(MoveKind kind, uint64_t extent_id, uint64_t bytes, uint64_t begin);
  /// Counts failed evictions, and warns of the first. `where` is the place where the tensor stays.
  void count_failure(const Status& failure, uint64_t count, const char* where,
                     EvictionResult* result);

  /// Whether an op waits for a fetch, or an allocation for room, right now.
  bool is_demanded() const { return demand_count_.load(std::memory_order_relaxed) > 0; }
  void begin_demand() { demand_count_.fetch_add(1, std::memory_order_relaxed); }
  void end_demand() { demand_count_.fetch_sub(1, std::memory_order_relaxed); }

  Stats& stats;
  MoveLog log;
  MoveRate read_speed;
  MoveRate write_speed;
  DuplexMeter duplex;  // of the disk, on the cpu backend
  // Processor time of the threads that move.
  MoveRate read_work;
  MoveRate write_work;
  MoveRate drop_work;  // the proof and the change of mappings of all that leaves, written or not
  /// Room of fetches under way that no op waits for on the host. Their extents can be evicted again
  /// once the fetches have ended.
  std::atomic<uint64_t> bytes_ahead{0};

 private:
  const Budget& budget_;
  std::atomic<uint32_t> demand_count_{0};
  std::atomic<bool> has_warned_{false};
};

/// A scope in which an op waits for a fetch, or an allocation for room.
class Demand {
 public:
  explicit Demand(MoveLedger& ledger) : ledger_(ledger) { ledger_.begin_demand(); }
  ~Demand() { ledger_.end_demand(); }
  Demand(const Demand&) = delete;
  Demand& operator=(const Demand&) = delete;

 private:
  MoveLedger& ledger_;
};

}  // namespace tencache
