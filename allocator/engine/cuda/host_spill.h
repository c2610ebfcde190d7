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
// Demotions are done one batch at a time, by whoever needs the room, and by a thread that keeps
// some of it free, so that evictions rarely wait for the disk. A thread that finds a demotion under
// way waits for it instead of looking for victims that are all claimed.
//
// Threads: any. mutex_ is held for whose turn it is, never across an I/O.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/stats.h"
#include "base/status.h"
#include "engine/migrations.h"
#include "memory/cuda/cuda_heap.h"
#include "tier/disk_tier.h"
#include "tier/host_tier.h"

namespace tencache {

class HostSpill {
 public:
  /// All of them outlive the spill.
  HostSpill(CudaHeap& heap, HostTier& host, DiskTier& disk, MigrationGate& gate, Stats& stats)
      : heap_(heap), host_(host), disk_(disk), gate_(gate), stats_(stats) {}
  ~HostSpill();
  HostSpill(const HostSpill&) = delete;
  HostSpill& operator=(const HostSpill&) = delete;

  /// From now on a thread keeps so much of the host's budget free. Once at most.
  void keep_free(uint64_t headroom_bytes);

  /// What came of one call of demote().
  struct Outcome {
    uint64_t freed_bytes = 0;
    bool was_called_off = false;  // ops wanted what it began with; later there may be others
  };
  /// Gives host memory of cold extents back, a batch at most, towards `bytes`; tells what was given
  /// back, by another thread where one was at it. REQUIRES: the thread holds a MigrationPermit.
  Outcome demote(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// While these know anything, who is needed last goes first, and who is not known before all
  /// others; else whoever was used longest ago.
  void set_next_uses(Migrations::NextUses next_uses) TENCACHE_EXCLUDES(plan_mutex_);

  /// A block was taken. Cheap.
  void on_use() TENCACHE_EXCLUDES(mutex_);

  DiskTier& disk() { return disk_; }

 private:
  struct Demotion {
    CudaExtent* extent = nullptr;
    uint64_t claimed_at_ticks = 0;
    Slot slot = {};
  };
  class Writer;

  Outcome demote_batch(uint64_t bytes);
  std::vector<CudaExtent*> coldest_first() TENCACHE_EXCLUDES(plan_mutex_);
  std::vector<Demotion> claim(uint64_t bytes, uint64_t* freed_bytes);
  void take_slots(std::vector<Demotion>& demotions);
  Result<Slot> take_slot(uint64_t bytes);
  Outcome write_and_release(const std::vector<Demotion>& demotions);
  void give_up(const Demotion& demotion);
  void warn(const Status& failure);

  uint64_t free_bytes() const { return host_.budget_bytes() - host_.stats().asked_bytes; }
  void work() TENCACHE_EXCLUDES(mutex_);
  void make_headroom();

  CudaHeap& heap_;
  HostTier& host_;
  DiskTier& disk_;
  MigrationGate& gate_;
  Stats& stats_;
  std::atomic<bool> warned_{false};
  std::atomic<bool> is_stopping_{false};
  uint64_t headroom_bytes_ = 0;  // constant after keep_free()

  Mutex plan_mutex_;  // held while it is asked, so that it can be taken away
  Migrations::NextUses next_uses_ TENCACHE_GUARDED_BY(plan_mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool is_demoting_ TENCACHE_GUARDED_BY(mutex_) = false;
  Outcome last_outcome_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t turns_ TENCACHE_GUARDED_BY(mutex_) = 0;  // that have ended
  bool is_nudged_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::thread worker_;
};

}  // namespace tencache
