// SPDX-License-Identifier: Apache-2.0
//
// HostAhead: the thread `tencache-spill` of host memory above a disk. It frees host memory, reads
// from disk and copies to disk before anyone has to wait for it.
//
// Note [Reading ahead]. A plan fetches in time for the link; a read from disk before that takes
// several times as long. So while a plan is followed, the thread gives blocks to the cold extents
// that are needed next, as much as host memory holds beside the room kept free. Those on disk alone
// are read into room that is free, or held by spare copies, or made by demoting extents that are
// needed later. The slot stays: should the plan be given up, demoting the extent again costs
// nothing. Other threads may demote meanwhile.
//
// Note [Copying ahead]. Evictions come in bursts, and a disk that idles before one is what the
// burst waits for. So a plan may say how much is to lie on disk ahead of need. After reading ahead
// the thread writes the extents that are needed last to slots, a batch at a time, and leaves them
// their blocks. Demoting them later only gives the blocks back. It copies no more than the disk has
// room for beside what lies there.
//
// Threads: one worker; any thread calls the rest. mutex_ only guards whether the worker is nudged.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/move/cuda/host_spill.h"
#include "engine/move/fork_latch.h"
#include "learn/plan.h"
#include "memory/cuda/cuda_heap.h"
#include "tier/host_tier.h"

namespace tencache {

class HostAhead {
 public:
  /// The arguments must outlive this object.
  HostAhead(HostSpill& spill, CudaHeap& heap, HostTier& host, ForkLatch& latch)
      : spill_(spill), heap_(heap), host_(host), fork_latch_(latch) {}
  /// Stops the worker after the batch under way.
  ~HostAhead();
  HostAhead(const HostAhead&) = delete;
  HostAhead& operator=(const HostAhead&) = delete;

  /// From now on the worker reads and copies ahead, and keeps half to all of this much of the
  /// host's budget free. Until then it does nothing. Call once at most.
  void start(uint64_t headroom_bytes);

  /// Call when a block was taken. The call is cheap.
  void on_use() TENCACHE_EXCLUDES(mutex_) {
    if (headroom_bytes_ == 0) return;
    if (free_bytes() < headroom_bytes_ / 2 || lacks_copies()) nudge();
  }
  /// Call when this many bytes are back on the GPU; their copies are spare now. The call is cheap.
  void on_fetch(uint64_t bytes) TENCACHE_EXCLUDES(mutex_) {
    if (headroom_bytes_ == 0) return;
    // The set of extents that are needed next has changed by some part.
    if (fetched_bytes_.fetch_add(bytes) + bytes >= headroom_bytes_ / 4) nudge();
  }
  /// Call when somebody else tells what is needed next, or nobody does any more.
  void on_plan() TENCACHE_EXCLUDES(mutex_) {
    if (headroom_bytes_ > 0) nudge();
  }

  /// Says how much host memory holds, and how much of that is kept free.
  void describe(Machine* machine) const;

 private:
  struct Reading {
    CudaExtent* extent = nullptr;
    HostBlock block;
  };

  /// Whether less is on disk than the plan lets the worker copy there.
  bool lacks_copies() const {
    const uint64_t wanted_bytes = copy_bytes_.load(std::memory_order_relaxed);
    return wanted_bytes > 0 && spill_.disk().used_bytes() < wanted_bytes;
  }
  uint64_t free_bytes() const { return host_.budget_bytes() - host_.stats().asked_bytes; }
  void work() TENCACHE_EXCLUDES(mutex_);
  void nudge() TENCACHE_EXCLUDES(mutex_);
  void make_headroom();
  void read();
  bool read_batch(bool* lacks_room);
  std::vector<Reading> claim_needed_next(bool* lacks_room);
  bool is_any_in_host(std::span<const HostSpill::ColdExtent> candidates);
  HostBlock take_spare_block(uint64_t bytes);
  bool read_back(const std::vector<Reading>& readings);
  void copy() TENCACHE_EXCLUDES(mutex_);

  HostSpill& spill_;
  CudaHeap& heap_;
  HostTier& host_;
  ForkLatch& fork_latch_;
  uint64_t headroom_bytes_ = 0;             // constant after start()
  std::atomic<uint64_t> fetched_bytes_{0};  // since the worker last read ahead
  // The bytes that the plan wants on disk ahead of need (HostSpill::copy_ahead_bytes), as far as
  // the disk has room.
  std::atomic<uint64_t> copy_bytes_{0};

  Mutex mutex_;
  CondVar changed_;
  bool is_nudged_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::atomic<bool> is_stopping_{false};
  std::thread worker_;
};

}  // namespace tencache
