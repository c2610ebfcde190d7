// SPDX-License-Identifier: Apache-2.0
//
// HostSpill: the disk below host memory. Where host memory is short, the copies of the coldest
// extents are demoted: written to slots of the disk tier, their blocks given back.
//
// A demotion of a batch of cold extents
//   1. claims each (busy; it stays cold). An extent that has a slot already, because it was read
//      back from it and not written since, only gives its block back,
//   2. takes slots. Where the disk is full, slots that only save a write later are given up,
//   3. writes the blocks from where they are, several requests in flight, and hashes them. They
//      hold still, since nobody else has them: what the slot must return is known without a proof,
//   4. enters the slots and gives the blocks back.
// Until then the block holds the bytes, so a disk that is full or fails costs nothing but the room:
// one warning, and evictions that find no host memory leave their extents on the GPU. A thread that
// wants an extent of the batch meanwhile (an op's pin, a request of a plan, a free) calls the batch
// off: nothing more is submitted, what is written whole is demoted, the rest stays in host memory.
//
// While a plan is followed the coldest extents are those that it needs last, else those used
// longest ago.
//
// One batch is demoted at a time, by a thread that needs the room, or by one that keeps some of it
// free so that evictions rarely wait for the disk. A thread that finds a demotion under way waits
// for its end instead of looking for victims that are all claimed. A batch is what the disk writes
// in some ten milliseconds.
//
// Note [Reading ahead]. A plan fetches in time for the link; a read from disk before that takes
// several times as long. So while a plan is followed, the same thread gives blocks to the cold
// extents that are needed next, as much as host memory holds beside the room kept free. Those on
// disk alone are read into room that is free, or held by spare copies, or made by demoting extents
// that are needed later. The slot stays: should the plan be given up, demoting the extent again
// costs nothing. Other threads demote meanwhile; one that finds nothing to demote waits for the
// reading, which leaves what can be given back.
//
// Note [Copying ahead]. Evictions come in bursts, and a disk that idles before one is what the
// burst waits for. So a plan may say how much is to lie on disk ahead of need. After reading ahead
// the same thread writes the extents that are needed last to slots, a batch at a time, and leaves
// them their blocks. Demoting them later only gives the blocks back.
//
// Threads: any, and `tencache-spill`, which keeps room free, reads and copies ahead. mutex_ only
// serialises whose turn it is; it is never held across I/O. plan_mutex_ is held while the plan
// cursor is asked what it needs next.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/stats.h"
#include "base/status.h"
#include "engine/move/fork_latch.h"
#include "engine/move/move_ledger.h"
#include "engine/move/move_rate.h"
#include "engine/move/next_uses.h"
#include "engine/move/slot_reader.h"
#include "learn/plan.h"
#include "memory/cuda/cuda_heap.h"
#include "tier/disk_tier.h"
#include "tier/host_tier.h"

namespace tencache {

class HostSpill {
 public:
  /// All of them outlive the spill.
  HostSpill(CudaHeap& heap, HostTier& host, DiskTier& disk, ForkLatch& latch, MoveLedger& ledger)
      : heap_(heap), host_(host), disk_(disk), fork_latch_(latch), ledger_(ledger) {}
  ~HostSpill();
  HostSpill(const HostSpill&) = delete;
  HostSpill& operator=(const HostSpill&) = delete;

  /// From now on a thread keeps so much of the host's budget free, and reads ahead. Once at most.
  void keep_free(uint64_t headroom_bytes);

  /// What came of one call of demote().
  struct Outcome {
    uint64_t freed_bytes = 0;
    bool was_called_off = false;  // what could go was wanted; later other blocks may go
  };
  /// Gives host memory of cold extents back, a batch at most, towards `bytes`. Tells what this
  /// thread gave back, or another one that was demoting. REQUIRES: the thread holds a
  /// MigrationPermit.
  Outcome demote(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// While these know anything, extents they do not know go first, then those needed last; else
  /// those used longest ago.
  void set_next_uses(const NextUses* next_uses) TENCACHE_EXCLUDES(plan_mutex_, mutex_);

  /// A block was taken. Cheap.
  void on_use() TENCACHE_EXCLUDES(mutex_) {
    if (headroom_bytes_ == 0) return;
    if (free_bytes() < headroom_bytes_ / 2 || copies_ahead_.load(std::memory_order_relaxed)) {
      nudge();
    }
  }
  /// So many bytes are back on the GPU; their copies are spare now. Cheap.
  void on_fetch(uint64_t bytes) TENCACHE_EXCLUDES(mutex_) {
    if (headroom_bytes_ == 0) return;
    // What is needed next has changed by some part.
    if (fetched_bytes_.fetch_add(bytes) + bytes >= headroom_bytes_ / 4) nudge();
  }

  /// Says what host memory holds and how fast the disk is.
  void describe(Machine* machine) const;

  DiskTier& disk() { return disk_; }
  /// So many bytes came from the disk by another way, in this time.
  void note_read(uint64_t bytes, uint64_t ns) {
    add(ledger_.stats.disk_read_bytes, bytes);
    read_speed_.add(bytes, ns);
  }
  /// As tencache::read_slots(); learns the disk's speed from it.
  SlotReadResult read_slots(std::span<const SlotRead> reads,
                            const std::function<void(size_t index)>& on_read);

 private:
  struct Demotion {
    CudaExtent* extent = nullptr;
    uint64_t claimed_at = 0;
    Slot slot = {};
  };
  struct Candidate {
    CudaExtent* extent = nullptr;
    uint64_t bytes = 0;
    uint64_t ticks_to_next_use = 0;  // kUnknown where no plan tells
    uint64_t last_use_at = 0;
  };
  struct Reading {
    CudaExtent* extent = nullptr;
    HostBlock block;
  };
  class Writer;
  static constexpr uint64_t kUnknown = ~uint64_t{0};

  Outcome demote_some(uint64_t bytes);
  Outcome demote_batch(uint64_t bytes);
  bool await_reading(uint64_t readings) TENCACHE_EXCLUDES(mutex_);
  std::vector<Candidate> cold_extents() TENCACHE_EXCLUDES(plan_mutex_);
  std::vector<Demotion> claim(uint64_t bytes, uint64_t* freed_bytes);
  void take_slots(std::vector<Demotion>& demotions);
  Outcome write(const std::vector<Demotion>& demotions, bool keeps_blocks);
  void give_up(const Demotion& demotion);
  void warn(const Status& failure);

  uint64_t free_bytes() const { return host_.budget_bytes() - host_.stats().asked_bytes; }
  void work() TENCACHE_EXCLUDES(mutex_);
  void nudge() TENCACHE_EXCLUDES(mutex_);
  void make_headroom();
  void read_ahead() TENCACHE_EXCLUDES(mutex_);
  bool read_batch(bool* lacks_room) TENCACHE_EXCLUDES(mutex_);
  std::vector<Reading> claim_needed_next(bool* lacks_room);
  bool is_any_in_host(std::span<const Candidate> candidates);
  HostBlock take_spare_block(uint64_t bytes);
  bool read(const std::vector<Reading>& readings);
  uint64_t copy_ahead_bytes() TENCACHE_EXCLUDES(plan_mutex_);
  void copy_ahead() TENCACHE_EXCLUDES(plan_mutex_, mutex_);
  std::vector<Demotion> claim_needed_last(uint64_t bytes);

  CudaHeap& heap_;
  HostTier& host_;
  DiskTier& disk_;
  ForkLatch& fork_latch_;
  MoveLedger& ledger_;
  std::atomic<bool> warned_{false};
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> copies_ahead_{false};  // the plan lets the thread do so, and more may come
  MoveRate read_speed_;                    // of the disk
  MoveRate write_speed_;
  std::atomic<uint64_t> fetched_bytes_{0};  // since the thread last read ahead
  uint64_t headroom_bytes_ = 0;             // constant after keep_free()

  Mutex plan_mutex_;  // held while next_uses_ is asked, so that it can be taken away
  const NextUses* next_uses_ TENCACHE_GUARDED_BY(plan_mutex_) = nullptr;

  Mutex mutex_;
  CondVar changed_;
  bool is_demoting_ TENCACHE_GUARDED_BY(mutex_) = false;
  uint64_t demotions_ TENCACHE_GUARDED_BY(mutex_) = 0;  // that have ended
  Outcome last_outcome_ TENCACHE_GUARDED_BY(mutex_);
  bool is_reading_ TENCACHE_GUARDED_BY(mutex_) = false;  // or copying: it has claimed extents
  uint64_t readings_ TENCACHE_GUARDED_BY(mutex_) = 0;    // that have ended
  bool is_nudged_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::thread worker_;
};

}  // namespace tencache
