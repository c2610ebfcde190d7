// SPDX-License-Identifier: Apache-2.0
//
// PinnedPool: host memory for the program itself (pin_memory(), DataLoaders). Its blocks come from
// a HostTier, in exact sizes, near the GPU, and pinned where the driver allows it. Where the driver
// refuses, a block is pageable memory (HostBlock::is_pinned): copies from and to it are correct but
// slower, and the tier has warned.
//
// Streams of any GPU may use a block. A block that no stream was noted for is free as soon as the
// program frees it. Any other waits until each noted stream has reached a mark that was made after
// the free. Waiting blocks are looked at when the mapped memory has no room, and when many have
// gathered. A mark that cannot be made, because a stream captures a graph or the driver refuses, is
// tried again then. Only where no more memory can be mapped does a thread wait for streams: those
// of the block freed first of all that can be waited for.
//
// A private pool belongs to CUDA graphs: copies that a graph recorded use its blocks at each
// replay. So nobody reuses a freed block that streams were noted for until the pool is dropped. A
// freed block that none was noted for serves the pool's next request of its size.
//
// Invariant: a block of the tier is the program's (live_), waits (waiting_, or with the polling
// thread), or is kept by one private pool.
//
// Hot path: allocate() and free() of a block without streams cost a lock of the tier, one of the
// pool and a few steps in balanced trees. They do not call the driver.
//
// Threads: any. mutex_ is held only for bookkeeping, never across a call of the driver or the tier
// (but at the end, when no other thread is left).
// The driver must not be called in a forked child, whose parent owns this memory, nor at exit.
// There allocate() refuses, and what would touch a block or the tier does nothing, without a lock.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/use_count.h"
#include "memory/cuda/block_table.h"
#include "memory/cuda/stream_quarantine.h"
#include "platform/cuda/stream_numbers.h"
#include "tier/host_tier.h"

namespace tencache {

/// A block as blocks() shows it.
struct PinnedView {
  const char* memory = nullptr;
  uint64_t bytes = 0;
  uint64_t private_pool = 0;               // its number; 0: none
  BlockState state = BlockState::kActive;  // free: kept by its private pool
};

struct PinnedFigures {
  UseCount bytes;   // what the program has, and what waits
  UseCount blocks;  // likewise
  uint64_t waiting_bytes = 0;
  uint64_t waiting_count = 0;
  uint64_t kept_bytes = 0;  // freed, but kept by private pools
};

class PinnedPool {
 public:
  /// The tier outlives the pool.
  explicit PinnedPool(HostTier& tier) : tier_(tier) {}
  /// Waits for the streams that still use what was freed. REQUIRES: every block was freed.
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// Takes memory at a multiple of 4096, with arbitrary contents. REQUIRES: bytes > 0; the private
  /// pool, if given, is not dropped. Returns kOutOfMemory when the budget or the machine has no
  /// room for the memory.
  Result<void*> allocate(uint64_t bytes, uint64_t private_pool = 0) TENCACHE_EXCLUDES(mutex_);
  /// The program is done with the block; copies that it has queued may go on. REQUIRES: allocate()
  /// returned the address, and it is not freed yet.
  void free(void* address) TENCACHE_EXCLUDES(mutex_);
  /// The stream uses the block that contains the address. Returns false when there is no such
  /// block. `gpu` is that of the stream and outlives the pool.
  bool note_use(const void* address, StreamNumbers& gpu, CUstream stream) TENCACHE_EXCLUDES(mutex_);
  /// Whether the address lies in a block that is the program's.
  bool contains(const void* address) const TENCACHE_EXCLUDES(mutex_);

  /// Frees waiting blocks that streams are done with. Returns whether something may have become
  /// free.
  bool poll(Patience patience = Patience::kForThreads) TENCACHE_EXCLUDES(mutex_);
  /// Gives memory without any block back to the system. May stop the GPUs.
  void trim() TENCACHE_EXCLUDES(mutex_);

  /// Makes a private pool and returns its number, which is never 0.
  uint64_t make_private_pool() TENCACHE_EXCLUDES(mutex_);
  /// Blocks freed in the pool may be reused, and those still in use are freed as other blocks are.
  /// REQUIRES: the devices are done with what was freed in it.
  void drop_private_pool(uint64_t number) TENCACHE_EXCLUDES(mutex_);

  PinnedFigures figures() const TENCACHE_EXCLUDES(mutex_);
  /// `what` is &UseCount::reset_peak or &UseCount::reset_totals.
  void reset(void (UseCount::*what)()) TENCACHE_EXCLUDES(mutex_);
  /// All blocks, in no order. Misses those that another thread polls at that moment.
  std::vector<PinnedView> blocks() const TENCACHE_EXCLUDES(mutex_);

 private:
  struct Live {
    HostBlock block;
    uint64_t private_pool = 0;
    StreamUses uses;
  };
  using LiveBlocks = std::map<uintptr_t, Live>;  // by address
  // The blocks that were freed in a private pool, by the bytes of the request that each serves.
  // Those that streams were noted for serve none, and stand at 0.
  using Kept = std::multimap<uint64_t, HostBlock>;

  HostBlock take_kept(uint64_t private_pool, uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  Result<HostBlock> allocate_slow(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  Status refusal(uint64_t bytes, const Status& reason) const TENCACHE_EXCLUDES(mutex_);
  LiveBlocks::const_iterator find(const void* address) const TENCACHE_REQUIRES(mutex_);
  void count_out(const HostBlock& block) TENCACHE_REQUIRES(mutex_);
  void wait_for(Live&& freed) TENCACHE_EXCLUDES(mutex_);
  void release(const std::vector<HostBlock>& over) TENCACHE_EXCLUDES(mutex_);

  HostTier& tier_;
  StreamQuarantine<HostBlock> waiting_{"pinned memory", OnFailure::kKeep};

  mutable Mutex mutex_;
  LiveBlocks live_ TENCACHE_GUARDED_BY(mutex_);
  std::map<uint64_t, Kept> kept_ TENCACHE_GUARDED_BY(mutex_);  // by private pool
  uint64_t last_private_pool_ TENCACHE_GUARDED_BY(mutex_) = 0;
  PinnedFigures figures_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
