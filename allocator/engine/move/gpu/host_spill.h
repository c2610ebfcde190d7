// SPDX-License-Identifier: Apache-2.0
//
// HostSpill: the disk below host memory. Where host memory is short, the copies of the coldest
// extents are demoted: written to slots of the disk tier, their blocks given back.
//
// A demotion of a batch of cold extents
//   1. claims each (busy; it stays cold). What has a slot already, because it was read back from
//      it and not written since, needs no more than that its block is given back,
//   2. takes slots. Where the disk is full, slots that only save a write later are given up,
//   3. writes the blocks from where they are, several requests in flight, and hashes them. They
//      hold still, since nobody else has them: what the slot must return is known without a proof,
//   4. enters the slots and gives the blocks back.
// Until then the block holds the bytes, so a disk that is full or fails costs nothing but the room:
// one warning, and evictions that find no host memory leave their extents on the GPU. Whoever wants
// an extent of the batch meanwhile (an op's pin, an order of a plan, a free) calls the batch off:
// nothing more is submitted, what is written whole is demoted, the rest stays in host memory.
//
// While a plan is followed the coldest are those that it needs last, else those used longest ago.
//
// One batch is demoted at a time, by whoever needs the room, or by a thread that keeps some of it
// free, so that evictions rarely wait for the disk. Who finds one under way waits for its end
// instead of looking for victims that are all claimed. A batch is what the disk writes in some ten
// milliseconds.
//
// Note [Reading ahead]. A plan fetches in time for the link, and a read from disk before that takes
// several times as long. So while a plan is followed, the same thread sees to it that the cold
// extents which are needed next, as much as half of host memory holds, have blocks there: what lies
// on disk alone among them is read into room that is free, or held by spare copies, or made by
// demoting who is needed later. The slot stays: should the plan be given up, demoting it again
// costs nothing. Others demote meanwhile; who finds nothing to demote waits for the reading, which
// leaves what can be given back.
//
// Threads: any. mutex_ is held for who is at it, never across an I/O.
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
#include "engine/move/move_rate.h"
#include "engine/move/mover.h"
#include "engine/move/slot_reader.h"
#include "learn/plan.h"
#include "memory/cuda/cuda_heap.h"
#include "tier/disk_tier.h"
#include "tier/host_tier.h"

namespace tencache {

class HostSpill {
 public:
  /// All of them outlive the spill.
  HostSpill(CudaHeap& heap, HostTier& host, DiskTier& disk, ForkLatch& gate, Stats& stats)
      : heap_(heap), host_(host), disk_(disk), fork_latch_(gate), stats_(stats) {}
  ~HostSpill();
  HostSpill(const HostSpill&) = delete;
  HostSpill& operator=(const HostSpill&) = delete;

  /// From now on a thread keeps so much of the host's budget free, and reads ahead. Once at most.
  void keep_free(uint64_t headroom_bytes);

  /// What came of one call of demote().
  struct Outcome {
    uint64_t freed_bytes = 0;
    bool was_called_off = false;  // what could go was wanted; later there may be others
  };
  /// Gives host memory of cold extents back, a batch at most, towards `bytes`; tells what was given
  /// back, by another thread where one was at it. REQUIRES: the thread holds a MigrationPermit.
  Outcome demote(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// While these know anything, who is needed last goes first, and who is not known before all
  /// others; else whoever was used longest ago.
  void set_next_uses(const NextUses* next_uses) TENCACHE_EXCLUDES(plan_mutex_, mutex_);

  /// A block was taken. Cheap.
  void on_use() TENCACHE_EXCLUDES(mutex_) {
    if (headroom_bytes_ > 0 && free_bytes() < headroom_bytes_ / 2) nudge();
  }
  /// So much is back on the GPU, its copies spare ones now. Cheap.
  void on_fetch(uint64_t bytes) TENCACHE_EXCLUDES(mutex_) {
    if (headroom_bytes_ == 0) return;
    // Each time that what is needed next has changed by some part.
    if (fetched_bytes_.fetch_add(bytes) + bytes >= headroom_bytes_ / 4) nudge();
  }

  /// Says what host memory holds and how fast the disk is.
  void describe(Machine* machine) const;

  DiskTier& disk() { return disk_; }
  /// So much came from the disk by another way, which took so long.
  void note_read(uint64_t bytes, uint64_t ns) {
    add(stats_.disk_read_bytes, bytes);
    read_speed_.add(bytes, ns);
  }
  /// As tencache::read_slots(), and the disk's speed is learned from it.
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
  Result<Slot> take_slot(uint64_t bytes);
  Outcome write_and_release(const std::vector<Demotion>& demotions);
  void give_up(const Demotion& demotion);
  void warn(const Status& failure);

  uint64_t free_bytes() const { return host_.budget_bytes() - host_.stats().asked_bytes; }
  void work() TENCACHE_EXCLUDES(mutex_);
  void nudge() TENCACHE_EXCLUDES(mutex_);
  void make_headroom();
  void read_ahead() TENCACHE_EXCLUDES(mutex_);
  bool read_batch(bool* lacks_room) TENCACHE_EXCLUDES(mutex_);
  std::vector<Reading> claim_needed_next(bool* lacks_room);
  HostBlock take_spare_block(uint64_t bytes);
  bool read(const std::vector<Reading>& readings);

  CudaHeap& heap_;
  HostTier& host_;
  DiskTier& disk_;
  ForkLatch& fork_latch_;
  Stats& stats_;
  std::atomic<bool> warned_{false};
  std::atomic<bool> is_stopping_{false};
  MoveRate read_speed_;  // of the disk
  MoveRate write_speed_;
  std::atomic<uint64_t> fetched_bytes_{0};  // since the thread last read ahead
  uint64_t headroom_bytes_ = 0;             // constant after keep_free()

  Mutex plan_mutex_;  // held while it is asked, so that it can be taken away
  const NextUses* next_uses_ TENCACHE_GUARDED_BY(plan_mutex_) = nullptr;

  Mutex mutex_;
  CondVar changed_;
  bool is_demoting_ TENCACHE_GUARDED_BY(mutex_) = false;
  uint64_t demotions_ TENCACHE_GUARDED_BY(mutex_) = 0;  // that have ended
  Outcome last_outcome_ TENCACHE_GUARDED_BY(mutex_);
  bool is_reading_ TENCACHE_GUARDED_BY(mutex_) = false;
  uint64_t readings_ TENCACHE_GUARDED_BY(mutex_) = 0;  // that have ended
  bool is_nudged_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::thread worker_;
};

}  // namespace tencache
