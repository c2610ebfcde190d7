// SPDX-License-Identifier: Apache-2.0
//
// Mover: moves batches of extents out of the device tier and back. This file moves what it is
// told to move; who decides is the evictor (evictions under pressure), the gate (fetches an op
// waits for) and chaos mode. How bytes move is the backend's affair: engine/move/disk/slot_mover.h
// maps slots of a file, engine/move/gpu/stream_mover.h copies on streams.
//
// An eviction claims an extent, copies its bytes to the tier below, seals it and proves that they
// are there; then it is cold and its room is free. A pin, a use or a differing proof at any point
// leaves it resident and nothing is lost. A fetch claims what is cold and brings the bytes back. An
// op waits for a fetch on demand; fetches ahead of use (plans) never exceed the budget.
//
// Threads: any. An extent in transition belongs to the thread that claimed it (memory/extent.h). No
// lock is held across a copy, an I/O, a mapping or a driver call. A MigrationPermit is held while
// anything moves: a fork waits until none is out, so a child never inherits a protected window or a
// half-done copy.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "base/stats.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/move/move_rate.h"
#include "engine/move/move_request.h"
#include "engine/move/next_uses.h"
#include "learn/plan.h"
#include "memory/extent.h"
#include "platform/stream_set.h"

namespace tencache {

/// Lets a fork wait for migrations under way and keeps new ones from starting. Not a lock: nothing
/// waits for it but forks, and permits do not exclude each other.
class ForkLatch {
 public:
  void enter() TENCACHE_EXCLUDES(mutex_);
  void leave() TENCACHE_EXCLUDES(mutex_);
  /// Blocks new permits and waits until none is out.
  void close() TENCACHE_EXCLUDES(mutex_);
  void reopen() TENCACHE_EXCLUDES(mutex_);
  bool is_closed() const TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return is_closed_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  int permit_count_ TENCACHE_GUARDED_BY(mutex_) = 0;
  bool is_closed_ TENCACHE_GUARDED_BY(mutex_) = false;
};

struct EvictionResult {
  uint64_t count = 0;
  uint64_t bytes = 0;  // of room that became free
  Status failure;      // the first disk or mapping failure; the extents stayed resident
};

/// Fetches for which the thread that asked had to wait: on demand, or ahead of use and still under
/// way. Whether the device waited, too, is decided elsewhere (engine/gate/device_waits.h).
struct LateFetches {
  uint64_t count = 0;
  uint64_t bytes = 0;
};

class Mover {
 public:
  virtual ~Mover() = default;
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  /// Evicts as many of the extents as can be; those in use, or used meanwhile, are left alone.
  virtual EvictionResult evict(std::span<Extent* const> extents) = 0;
  /// The same of what was ordered and is still to leave when its turn comes, for which nothing has
  /// to be awaited but what was queued when the order was given. Room appears in parts of about
  /// bytes_at_once(); each is told on the calling thread.
  using OnEvicted = std::function<void(const EvictionResult& part)>;
  virtual void evict_requested(std::span<const MoveRequest> requests, const OnEvicted& on_evicted);
  /// What the program has queued so far that may use what is ordered to leave now.
  virtual std::shared_ptr<const QueuedWork> queued_work(std::span<const MoveRequest> /*requests*/) {
    return nullptr;
  }

  /// Makes every extent usable by what the thread does next, on these streams where the backend has
  /// any, whoever fetches it. The caller has pinned them. Waits for room. Bytes that cannot be
  /// brought back end the process (base/check.h fatal). Returns what was not there, for the caller
  /// to count.
  virtual LateFetches fetch(std::span<Extent* const> extents, StreamSet streams) = 0;

  /// Fetches what is ordered ahead of use, as far as there is room; what has become pointless is
  /// dropped. Returns what the order that it put back needs and does not find; 0 when it put none
  /// back. There may be more to take even so.
  virtual uint64_t prefetch(RequestSource& requests) = 0;

  /// Moves of about so many bytes are begun at a time: enough to keep the link busy, and not so
  /// much that those who need the first of them wait long for the last.
  virtual uint64_t bytes_at_once() const { return 16 * kMiB; }

  /// Waits while `is_worth_it`, and the device has not done all that was queued on these streams so
  /// far: a program that is ahead of it loses nothing. Returns at once where nothing is queued.
  virtual void wait_while_ahead(StreamSet /*streams*/,
                                const std::function<bool()>& /*is_worth_it*/) {}

  /// Who tells which copies below are needed last, where that matters; null: nobody does any more,
  /// and nobody is asked when this returns.
  virtual void set_next_uses(const NextUses* /*next_uses*/) {}

  /// Takes note of what has arrived since, so that it can be evicted; waits for the rest if it may.
  virtual void settle(bool /*may_wait*/) {}

  /// For each extent that an op asks for and whose bytes are there: what was fetched ahead of use
  /// came early. The first op that asks decides.
  void count_early(Extent* extent);

  /// Whether an op waits for a fetch, or an allocation for room, right now.
  bool is_demanded() const { return demand_count_.load(std::memory_order_relaxed) > 0; }
  void begin_demand() { demand_count_.fetch_add(1, std::memory_order_relaxed); }
  void end_demand() { demand_count_.fetch_sub(1, std::memory_order_relaxed); }
  /// Room of fetches under way that no op waits for on the host: it can be evicted again once they
  /// have ended.
  uint64_t bytes_ahead() const { return bytes_ahead_.load(std::memory_order_relaxed); }

  /// Says what it knows of the tiers below the one that it writes to.
  virtual void describe_below(Machine* /*machine*/) const {}
  const MoveRate& read_speed() const { return read_speed_; }
  const MoveRate& write_speed() const { return write_speed_; }
  /// Processor time of the threads that move.
  const MoveRate& read_work() const { return read_work_; }
  const MoveRate& write_work() const { return write_work_; }
  const MoveRate& drop_work() const { return drop_work_; }

  ForkLatch& fork_latch() { return fork_latch_; }

 protected:
  explicit Mover(Stats& stats) : stats_(stats) {}

  /// The same of one whose bytes are under way.
  static void note_late(Extent* extent, LateFetches* late);
  /// An extent that is sealed becomes cold, or resident again, in a moment.
  static void wait_while_sealing(const Extent& extent);

  Stats& stats_;
  ForkLatch fork_latch_;
  MoveRate read_speed_;
  MoveRate write_speed_;
  MoveRate read_work_;
  MoveRate write_work_;
  MoveRate drop_work_;  // the proof, and what takes the place of whatever leaves, written or not
  std::atomic<uint64_t> bytes_ahead_{0};

 private:
  std::atomic<uint32_t> demand_count_{0};
};

}  // namespace tencache
