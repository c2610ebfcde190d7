// SPDX-License-Identifier: Apache-2.0
//
// PrivatePools: pools of blocks of their own, for what must not share memory with anything else:
// the allocations of a CUDA graph, whose replays use them again long after they were freed. A pool
// is a BlockPool, so its memory is always resident, and what is freed in it serves that pool alone,
// until the pool is dropped.
//
// A graph may be replayed on streams that the pool has never heard of. So only the caller knows
// when the device is done with a pool's free memory; nothing here is dropped on its own.
//
// Threads: any. mutex_ is held for bookkeeping only, never across a call of a pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "memory/cuda/block_pool.h"

namespace tencache {

class PrivatePools {
 public:
  using PoolPtr = std::shared_ptr<BlockPool>;

  /// All of these outlive the pools.
  PrivatePools(StreamNumbers& numbers, SegmentSource& source, ProgramUse& use)
      : numbers_(numbers), source_(source), use_(use) {}

  /// Makes a pool and returns its number, which is never 0 and never used again.
  uint64_t make() TENCACHE_EXCLUDES(mutex_);
  /// Null when there is none of that number.
  PoolPtr find(uint64_t number) const TENCACHE_EXCLUDES(mutex_);
  /// Gives the pool's free segments back, and forgets the pool when it is empty then: whether it is
  /// gone. REQUIRES: the device is done with everything that was freed in it, and nobody allocates
  /// in it any more.
  bool drop(uint64_t number) TENCACHE_EXCLUDES(mutex_);

  /// All pools there are, with their numbers. One relaxed load while there is none.
  std::vector<std::pair<uint64_t, PoolPtr>> all() const TENCACHE_EXCLUDES(mutex_);
  uint64_t segment_bytes() const;

 private:
  StreamNumbers& numbers_;
  SegmentSource& source_;
  ProgramUse& use_;
  // Written with mutex_ held. Relaxed: whoever frees a block got it from a thread that saw it.
  std::atomic<uint64_t> count_{0};
  mutable Mutex mutex_;
  std::map<uint64_t, PoolPtr> pools_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t last_number_ TENCACHE_GUARDED_BY(mutex_) = 0;
};

}  // namespace tencache
