// SPDX-License-Identifier: Apache-2.0
//
// Mover: the interface of what moves batches of extents out of the device tier and back. A mover
// moves what it is told to; others decide: the evictor (room), the gate (an op waits), the
// prefetcher (ahead of use) and chaos mode. engine/move/cpu/slot_mover.h maps slots of a file,
// engine/move/cuda/stream_mover.h copies on streams.
//
// An eviction claims an extent, copies its bytes to the tier below unless they are presumed to be
// there, seals it and proves that the bytes are there; then the extent is cold and its room is
// free. A pin, a use or a differing proof at any point leaves the extent resident and nothing is
// lost. A fetch claims what is cold and brings the bytes back. An op waits for a fetch on demand;
// fetches ahead of use never exceed the budget.
//
// Threads: any. An extent in transition belongs to the thread that claimed it (memory/extent.h). No
// lock is held across a copy, an I/O, a mapping or a driver call. A thread holds a MigrationPermit
// while it moves anything (engine/move/fork_latch.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/stats.h"
#include "base/units.h"
#include "engine/move/eviction_source.h"
#include "engine/move/fork_latch.h"
#include "engine/move/move_ledger.h"
#include "engine/move/move_request.h"
#include "engine/move/next_uses.h"
#include "learn/plan.h"
#include "memory/extent.h"
#include "platform/stream_set.h"

namespace tencache {

class Mover {
 public:
  virtual ~Mover() = default;
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  /// Evicts as many of the extents as it can; those in use, or used meanwhile, stay.
  virtual EvictionResult evict(std::span<Extent* const> extents) = 0;
  /// Takes requests from the source until it has no more, and evicts each extent whose request
  /// still holds when its turn comes. An eviction waits for the work that was queued when its
  /// request was made and, where that can be told, for no later work. Room becomes free in parts of
  /// at most bytes_at_once(), or of one extent. The calling thread reports each part to the source
  /// (on_evicted()).
  virtual void evict_requested(EvictionSource& source);
  /// The work that the program has queued so far and that may use what is requested to leave now.
  virtual std::shared_ptr<const QueuedWork> queued_work(std::span<const MoveRequest> /*requests*/) {
    return nullptr;
  }

  /// Makes every extent usable by what the thread does next, on these streams where the backend has
  /// any, whoever fetches it. The caller has pinned the extents. Waits for room. Bytes that cannot
  /// be read from disk end the process (base/check.h fatal). What the kernel or a GPU's driver
  /// refuses stays cold: the op then uses it slowly, or faults on the GPU. `wait`, which may be
  /// null, is told what was not there.
  virtual void fetch(std::span<Extent* const> extents, StreamSet streams, OpWait* wait) = 0;

  /// Fetches what is requested ahead of use, as far as there is room, and drops requests that have
  /// become pointless. A request that finds no room is put back. Returns the bytes that it needs,
  /// or 0 if none was put back. Even then there may be more to take.
  virtual uint64_t prefetch(RequestSource& requests) = 0;

  /// Moves of about this many bytes are begun at a time: enough to keep the link busy, and not so
  /// much that a thread which needs the first of them waits long for the last.
  virtual uint64_t bytes_at_once() const { return kBytesAtOnceMax; }

  /// Whether an op is only queued when the program goes on.
  virtual bool are_ops_queued() const { return false; }

  /// Waits while `is_worth_it` returns true and the device has not done all that was queued on
  /// these streams: a program that is ahead of the device loses nothing. Returns at once where
  /// nothing is queued.
  virtual void wait_while_ahead(StreamSet /*streams*/,
                                const std::function<bool()>& /*is_worth_it*/) {}

  /// Sets who tells which copies below are needed last, where that matters. `next_uses` is null
  /// when nobody does. When this returns, nobody asks the one before any more.
  virtual void set_next_uses(const NextUses* /*next_uses*/) {}

  /// Evicts written cold extents again until `bytes` became free or none is left, where programs
  /// may write to cold extents without an op. Takes those of which half or more was written, unless
  /// more was being written at the last look. With `takes_all`, takes all of them.
  virtual EvictionResult evict_written(uint64_t /*bytes*/, bool /*takes_all*/) { return {}; }
  /// Checks that those of the extents that are cold show what was written, where programs may read
  /// cold extents without an op. Does so in a forked child, too. A difference ends the process
  /// (base/check.h fatal).
  virtual void check_cold(std::span<Extent* const> /*extents*/, bool /*is_in_child*/) {}
  /// Looks for writes to cold extents without an op now, and books them.
  virtual void look_for_writes() {}
  /// Ends the search for unannounced writes. Call before the end of the parts that the heap calls.
  virtual void stop_looking() {}

  /// Takes note of the fetches that have arrived, so that their extents can be evicted; waits for
  /// the others if it may.
  virtual void settle(bool /*may_wait*/) {}

  /// Fills in sizes and speeds of the host memory and the disk below the device, where both exist.
  virtual void describe_below(Machine* /*machine*/) const {}

  MoveLedger& ledger() { return ledger_; }
  const MoveLedger& ledger() const { return ledger_; }
  ForkLatch& fork_latch() { return fork_latch_; }

 protected:
  Mover(Stats& stats, const Budget& budget) : ledger_(stats, budget) {}

  MoveLedger ledger_;
  ForkLatch fork_latch_;
};

}  // namespace tencache
