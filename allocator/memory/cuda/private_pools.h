// SPDX-License-Identifier: Apache-2.0
//
// PrivatePools: separate pools of blocks, for what must share memory with nothing else: the
// allocations of a CUDA graph, whose replays use them again long after they were freed. Each pool
// is a BlockPool, so its memory is always resident. Memory that is freed in a pool serves that pool
// alone until the pool is dropped.
//
// A graph may be replayed on streams that the pool has never heard of. So only the caller knows
// when the device is done with a pool's free memory; nothing here is dropped on its own.
//
// Threads: any. mutex_ is held only for bookkeeping, never across a call of a pool.
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
  struct Dropped {
    uint64_t bytes = 0;    // of segments that went back
    bool is_gone = false;  // whether the pool is gone, too
  };

  /// All three arguments outlive the pools.
  PrivatePools(StreamNumbers& numbers, SegmentSource& source, ProgramUse& use)
      : numbers_(numbers), source_(source), use_(use) {}

  /// Makes a pool and returns its number, which is never 0 and never reused.
  uint64_t make() TENCACHE_EXCLUDES(mutex_);
  /// The pool of that number. Returns null when there is none.
  PoolPtr find(uint64_t number) const TENCACHE_EXCLUDES(mutex_);
  /// Gives the pool's free segments back, and forgets the pool if it is empty then. REQUIRES: the
  /// device is done with everything that was freed in it, and nobody allocates in it any more.
  Dropped drop(uint64_t number) TENCACHE_EXCLUDES(mutex_);

  /// All pools with their numbers. Costs one relaxed load while there are none.
  std::vector<std::pair<uint64_t, PoolPtr>> all() const TENCACHE_EXCLUDES(mutex_);
  uint64_t segment_bytes() const;

 private:
  StreamNumbers& numbers_;
  SegmentSource& source_;
  ProgramUse& use_;
  // Threads write the count with mutex_ held. A relaxed read suffices: a thread that frees a block
  // got the block from a thread that saw the count.
  std::atomic<uint64_t> count_{0};
  mutable Mutex mutex_;
  std::map<uint64_t, PoolPtr> pools_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t last_number_ TENCACHE_GUARDED_BY(mutex_) = 0;
};

}  // namespace tencache
