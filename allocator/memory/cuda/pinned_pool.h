// SPDX-License-Identifier: Apache-2.0
//
// PinnedPool: host memory for the program itself (pin_memory(), DataLoaders), of the blocks of a
// HostTier: exact sizes, next to the GPU, pinned where the driver allows it. Where it refuses, a
// block is pageable memory and says so: copies from and to it are right and slower, and the tier
// has warned.
//
// Streams of any GPU may use a block. One that none was noted for is free as soon as the program
// frees it. One that streams were noted for waits until each of them has reached a mark that was
// made after the block was freed; what waits is looked at where the mapped memory has no room, and
// when much of it has gathered. A mark that cannot be made, because a stream captures a graph or
// the driver refuses, is tried again then. Where the budget ends, and only there, a thread waits
// for streams, the one freed first first.
//
// A private pool belongs to CUDA graphs: copies that a graph recorded use its blocks at each
// replay. So a block that streams were noted for is used again by nobody once it is freed, until
// the pool is dropped; one that none was noted for serves the pool's next request of its size.
//
// Invariant: a block of the tier is the program's (live_), waits (waiting_, or with the thread that
// polls), or is kept by one private pool.
//
// Hot path: allocate() and free() of a block without streams cost a lock of the tier, one of the
// pool and a few steps in balanced trees; the driver is not called.
//
// Threads: any. mutex_ is held for bookkeeping only, never across a call of the driver or the tier.
// Where the driver must not be called, in a forked child, whose parent's memory this is, and at
// exit, allocate() refuses and the rest does nothing, without a lock.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/use_count.h"
#include "memory/cuda/stream_quarantine.h"
#include "platform/cuda/stream_numbers.h"
#include "tier/host_tier.h"

namespace tencache {

enum class PinnedState : uint8_t { kInUse, kWaiting, kKept };

/// A block as a walk shows it.
struct PinnedView {
  const char* memory = nullptr;
  uint64_t bytes = 0;
  uint64_t private_pool = 0;  // its number; 0: none
  PinnedState state = PinnedState::kInUse;
  bool is_pinned = false;
};

struct PinnedFigures {
  UseCount bytes;   // of what the program has, and of what waits
  UseCount blocks;  // likewise
  uint64_t waiting_bytes = 0;
  uint64_t waiting_count = 0;
  uint64_t kept_bytes = 0;  // freed in private pools, and nobody else's
};

class PinnedPool {
 public:
  /// The tier outlives the pool.
  explicit PinnedPool(HostTier& tier) : tier_(tier) {}
  /// Waits for the streams that still use what was freed. REQUIRES: every block was freed.
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// Memory at a multiple of 4096, its contents anything. REQUIRES: bytes > 0; the private pool, if
  /// one is given, is not dropped. kOutOfMemory when neither budget nor machine have room for it.
  Result<void*> allocate(uint64_t bytes, uint64_t private_pool = 0) TENCACHE_EXCLUDES(mutex_);
  /// The program is done with the block; copies that it has queued may go on. REQUIRES: it is what
  /// allocate() returned, and not freed yet.
  void free(void* address) TENCACHE_EXCLUDES(mutex_);
  /// The stream uses the block that contains the address. False when there is no such block. The
  /// numbers are those of the stream's GPU and outlive the pool.
  bool note_use(const void* address, StreamNumbers& gpu, CUstream stream) TENCACHE_EXCLUDES(mutex_);
  /// Whether a block that is the program's contains the address.
  bool contains(const void* address) const TENCACHE_EXCLUDES(mutex_);

  /// Frees what waits and is over; whether there was something.
  bool poll() TENCACHE_EXCLUDES(mutex_) { return poll(Patience::kForThreads); }
  /// Gives the memory in which nothing lies any more back to the system. May stop the GPUs.
  void trim() TENCACHE_EXCLUDES(mutex_);

  /// A new private pool; its number is never 0.
  uint64_t make_private_pool() TENCACHE_EXCLUDES(mutex_);
  /// What is freed in it may be used again, and what is yet to be freed is freed as other blocks.
  /// REQUIRES: the devices are done with what was freed in it.
  void drop_private_pool(uint64_t number) TENCACHE_EXCLUDES(mutex_);

  PinnedFigures figures() const TENCACHE_EXCLUDES(mutex_);
  void reset_peaks() TENCACHE_EXCLUDES(mutex_);
  void reset_totals() TENCACHE_EXCLUDES(mutex_);
  /// All blocks, in no order. What another thread polls at that moment is not seen.
  std::vector<PinnedView> blocks() const TENCACHE_EXCLUDES(mutex_);

 private:
  struct Live {
    HostBlock block;
    uint64_t private_pool = 0;
    StreamUses uses;
  };
  using LiveBlocks = std::map<uintptr_t, Live>;  // by address
  // What was freed in a private pool.
  struct Kept {
    std::vector<HostBlock> used;              // by streams
    std::multimap<uint64_t, HostBlock> free;  // by bytes
  };

  HostBlock take_kept(uint64_t private_pool, uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  Result<HostBlock> allocate_slow(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  Status refusal(uint64_t bytes, const Status& reason) const TENCACHE_EXCLUDES(mutex_);
  LiveBlocks::const_iterator find(const void* address) const TENCACHE_REQUIRES(mutex_);
  void count_out(const HostBlock& block) TENCACHE_REQUIRES(mutex_);
  void wait_for(Live&& freed) TENCACHE_EXCLUDES(mutex_);
  bool poll(Patience patience) TENCACHE_EXCLUDES(mutex_);
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
