// SPDX-License-Identifier: Apache-2.0
//
// HostSpill: the disk below host memory. Where host memory is short, the copies of the coldest
// extents are demoted: they are written to slots of the disk tier, and their blocks are given back.
// HostSpill also reads slots back (engine/move/slot_reader.h).
//
// A demotion of a batch of cold extents
//   1. claims each, which becomes busy and stays cold. An extent that has a slot already, because
//      it was read back from it and not written since, only gives its block back,
//   2. takes slots. Where the disk is full, slots that only save a write later are given up,
//   3. writes the blocks from where they are, several requests in flight, and hashes them. They
//      hold still, since nobody else has them: what the slot must return is known without a proof,
//   4. enters the slots and gives the blocks back.
// Until then the block holds the bytes, so a disk that is full or fails costs nothing but the room:
// there is one warning, and evictions that find no host memory leave their extents on the GPU. A
// thread that wants an extent of the batch meanwhile (an op's pin, a request of a plan, a free)
// calls the batch off: nothing more is submitted, what is written whole is demoted, the rest stays
// in host memory.
//
// While a plan is followed, the coldest extents are those that it needs last. Otherwise they are
// those used longest ago.
//
// One batch is demoted at a time, by a thread that needs the room, or by one that keeps some of it
// free (engine/move/cuda/host_ahead.h). A thread that finds a demotion under way waits for its end
// instead of looking for victims that are all claimed, and looks itself if that demotion found
// none. A batch is what the disk writes in some twenty milliseconds or less. A thread that claims
// cold extents for something else says so (OtherClaim). Another thread that finds nothing to demote
// meanwhile waits for that claim to end, because the claimed extents can give their blocks back
// then.
//
// Threads: any. mutex_ only guards whose turn it is; it is never held across I/O. plan_mutex_
// is held while the plan cursor is asked what it needs next.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/stats.h"
#include "base/status.h"
#include "engine/move/move_ledger.h"
#include "engine/move/move_rate.h"
#include "engine/move/next_uses.h"
#include "engine/move/slot_reader.h"
#include "learn/plan.h"
#include "memory/cuda/cuda_heap.h"
#include "tier/disk_tier.h"

namespace tencache {

class HostSpill {
 public:
  /// The arguments outlive the spill.
  HostSpill(CudaHeap& heap, DiskTier& disk, MoveLedger& ledger)
      : heap_(heap), disk_(disk), ledger_(ledger) {}
  HostSpill(const HostSpill&) = delete;
  HostSpill& operator=(const HostSpill&) = delete;

  /// What came of one call of demote().
  struct Outcome {
    uint64_t freed_bytes = 0;
    bool was_called_off = false;  // what could go was wanted; later other blocks may go
  };
  /// Gives host memory of cold extents back, a batch at most, towards `bytes`. Tells what this
  /// thread gave back, or another one that was demoting. Only a demotion that began after the call
  /// tells that nothing can go. REQUIRES: the thread holds a MigrationPermit.
  Outcome demote(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// Sets who tells the next uses. `next_uses` is null when nobody does. While `next_uses` knows
  /// anything, extents that it does not know go first, then those needed last. Otherwise those used
  /// longest ago go first.
  void set_next_uses(const NextUses* next_uses) TENCACHE_EXCLUDES(plan_mutex_, mutex_);

  struct ColdExtent {
    CudaExtent* extent = nullptr;
    uint64_t bytes = 0;
    uint64_t ticks_to_next_use = 0;  // kUnknown where no plan tells
    uint64_t last_use_at = 0;
  };
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  /// The extents that are cold now. Nobody has claimed them yet: each may be freed meanwhile, and
  /// allocated anew.
  std::vector<ColdExtent> cold_extents() TENCACHE_EXCLUDES(plan_mutex_);
  /// How much of what is cold is to lie on disk, too. Returns 0 if there is no plan.
  uint64_t copy_ahead_bytes() TENCACHE_EXCLUDES(plan_mutex_);
  /// Writes this many bytes, a batch at most, of the extents that are needed last to slots, and
  /// leaves them their blocks. Returns false where the disk has no room for all of it: no slot is
  /// given up for a copy that may wait. REQUIRES: the thread holds a MigrationPermit, and an
  /// OtherClaim lives.
  bool copy(uint64_t bytes) TENCACHE_EXCLUDES(plan_mutex_);
  /// How many bytes are worth reading at once.
  uint64_t read_batch_bytes() const;

  /// A scope in which the thread may have claimed extents for something other than a demotion.
  /// There is one at a time.
  class OtherClaim {
   public:
    explicit OtherClaim(HostSpill& spill) TENCACHE_EXCLUDES(spill.mutex_);
    ~OtherClaim() TENCACHE_EXCLUDES(spill_.mutex_);
    OtherClaim(const OtherClaim&) = delete;
    OtherClaim& operator=(const OtherClaim&) = delete;

   private:
    HostSpill& spill_;
  };

  /// Says how fast the disk is.
  void describe(Machine* machine) const;

  DiskTier& disk() { return disk_; }
  /// Records that this many bytes came from the disk by another way, and in which time.
  void note_read(uint64_t bytes, uint64_t ns) {
    add(ledger_.stats.disk_read_bytes, bytes);
    read_speed_.add(bytes, ns);
  }
  /// Calls tencache::read_slots(), and learns the disk's speed from it.
  SlotReadResult read_slots(std::span<const SlotRead> reads,
                            const std::function<void(size_t index)>& on_read);

 private:
  struct Demotion {
    CudaExtent* extent = nullptr;
    uint64_t claimed_at = 0;
    Slot slot = {};
  };
  class Writer;

  Outcome demote_some(uint64_t bytes);
  Outcome demote_batch(uint64_t bytes);
  bool await_other_claim(uint64_t ended) TENCACHE_EXCLUDES(mutex_);
  std::vector<Demotion> claim(uint64_t bytes, bool keeps_blocks, uint64_t* freed_bytes);
  void take_slots(std::vector<Demotion>& demotions);
  Outcome write(const std::vector<Demotion>& demotions, bool keeps_blocks);
  void give_up(const Demotion& demotion);
  void warn(const Status& failure);

  CudaHeap& heap_;
  DiskTier& disk_;
  MoveLedger& ledger_;
  std::atomic<bool> has_warned_{false};
  MoveRate read_speed_;  // of the disk
  MoveRate write_speed_;

  Mutex plan_mutex_;  // held while next_uses_ is asked, so that it can be taken away
  const NextUses* next_uses_ TENCACHE_GUARDED_BY(plan_mutex_) = nullptr;

  Mutex mutex_;
  CondVar changed_;
  bool is_demoting_ TENCACHE_GUARDED_BY(mutex_) = false;
  uint64_t demotions_ TENCACHE_GUARDED_BY(mutex_) = 0;  // that have ended
  Outcome last_outcome_ TENCACHE_GUARDED_BY(mutex_);
  bool is_claimed_ TENCACHE_GUARDED_BY(mutex_) = false;    // by an OtherClaim
  uint64_t other_claims_ TENCACHE_GUARDED_BY(mutex_) = 0;  // that have ended
};

}  // namespace tencache
