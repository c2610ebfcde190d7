// SPDX-License-Identifier: Apache-2.0
//
// HostTier: the host memory that holds the bytes of extents that left the GPU. Copy engines read
// and write it; the disk tier writes and reads it with O_DIRECT. So a block begins at a multiple of
// kIoAlignment and has whole units to itself. Its size is not rounded any further.
//
// The memory comes in chunks. A chunk is mapped, bound to a NUMA node, touched and pinned when a
// block finds no room (platform/host_memory.h). It is reused until somebody asks for it (trim()) or
// a block needs its room, because unpinning may stop the device. A chunk that cannot be pinned
// stays, as pageable memory, and its blocks say so; copies of those go through a StagingRing
// (engine/move/cuda/staged_copies.h). No memory is mapped that would leave the machine, or its
// cgroup, less than 128 MiB, whatever the budget says.
//
// A block beyond the budget is for bytes that must get through even when the budget is used up,
// because an op waits for them. It is pageable memory of its own, unmapped when it is released.
//
// Invariants:
//   1. Blocks do not overlap, and no block spans two chunks, so a copy is within one registration.
//   2. The bytes of all chunks, those being made included, never exceed the budget.
//   3. asked <= chunk bytes; pinned <= chunk bytes.
//
// Note [Chunks]: a chunk holds a whole number of the blocks for which it is made: as many as fit
// into chunk_bytes, or one larger block. Training allocates few sizes many times, so chunks are
// full, and the hole that a block leaves fits the next block of its size. A measurement took the
// sizes of a 7 B model and its optimizer (65 GiB), which all leave and come back in changing
// orders: chunks of up to 1 GiB leave 3.5-4 % unused, and these leave 0-0.7 %. Where even the
// mixture of sizes changes at random, the larger ones leave 7.5 % and these leave 5.4-7 %. A chunk
// costs one registration and some milliseconds, and nothing is pinned before it is needed. Where
// the budget or the machine has no room for another chunk, free ones, which are too small then, are
// unmapped in its place.
//
// Threads: every method may be called from any thread. mutex_ is held for bookkeeping only.
// grow_mutex_ alone serialises growing, which can take seconds and may unpin free chunks; a thread
// that waited for it first looks for room again. A forked child has no host tier: allocate() and
// take() refuse, release() does nothing, and stats() is for the parent alone. The chunks are not
// mapped there, unless they are the program's pinned memory (Note [Fork] in
// platform/host_memory.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/range_allocator.h"
#include "base/status.h"
#include "base/units.h"
#include "base/use_count.h"
#include "platform/host_memory.h"
#include "platform/host_pinner.h"
#include "tier/io_channel.h"

namespace tencache {

/// A place in host memory. It is trivially copyable, and its holder owns the place.
struct HostBlock {
  static constexpr uint64_t kBeyondBudget = ~uint64_t{0};

  char* memory = nullptr;
  uint64_t bytes = 0;   // as asked; 0 = no block
  uint64_t offset = 0;  // in the tier's own space, or kBeyondBudget
  bool is_pinned = false;
  bool is_valid() const { return bytes != 0; }
  bool is_beyond_budget() const { return offset == kBeyondBudget; }
  /// The bytes that may be read and written at `memory`, in whole I/O units.
  uint64_t capacity_bytes() const { return round_up(bytes, kIoAlignment); }
};

struct HostTierConfig {
  uint64_t budget_bytes = 0;         // chunks never take more (default_host_budget())
  uint64_t chunk_bytes = 64 * kMiB;  // size of a chunk for smaller blocks (Note [Chunks])
  // Size of the first chunk for smaller blocks. Each further one is as large as all before it, up
  // to chunk_bytes. 0 means that all of them have chunk_bytes.
  uint64_t first_chunk_bytes = 0;
  int node = -1;                 // NUMA node of the device; -1 = any
  unsigned threads = 4;          // number of threads that touch a chunk
  HostPinner* pinner = nullptr;  // outlives the tier; null = nothing is pinned
  const char* remedy = "Raise the budget of host memory.";  // ends the message of a full budget
  /// Makes the memory of a chunk. Where this function is empty, HostMemory::map does. Tests inject
  /// faults here.
  std::function<Result<HostMemory>(const HostMemoryRequest&)> memory_factory = {};
  /// Returns the memory that the machine has left. Where this function is empty,
  /// bytes_left(probe_memory()) tells it.
  std::function<uint64_t()> bytes_left = {};
};

struct HostTierStats {
  uint64_t asked_bytes = 0;  // of all live blocks
  uint64_t peak_asked_bytes = 0;
  uint64_t chunk_bytes = 0;  // mapped or being mapped; shrinks by trim() or after a failure
  uint64_t pinned_bytes = 0;
  UseCount mapped_bytes;  // of chunks that were made, pinned or not
  UseCount mapped_chunks;
  uint64_t block_count = 0;
  uint64_t beyond_bytes = 0;  // of blocks beyond the budget, which count nowhere else
  uint64_t peak_beyond_bytes = 0;
};

class HostTier {
 public:
  /// Makes a tier, and maps nothing yet. Returns kInvalidArgument for a budget that holds nothing.
  static Result<std::unique_ptr<HostTier>> create(HostTierConfig config);
  /// Gives all memory back. It is not for process exit, where the driver may be gone. REQUIRES: no
  /// copy from or to a block is under way.
  ~HostTier();
  HostTier(const HostTier&) = delete;
  HostTier& operator=(const HostTier&) = delete;

  /// Takes a block; its bytes are undefined. Returns kNoSpace when the budget or the machine has no
  /// room for it, kOutOfMemory when the kernel refuses the memory, and kFailedPrecondition in a
  /// forked child. The message of the first two says the size of the request, why it is refused and
  /// what would help. After a failure all blocks are as before.
  Result<HostBlock> allocate(uint64_t bytes) TENCACHE_EXCLUDES(grow_mutex_, mutex_);

  /// Takes a block as allocate() does, but only from mapped memory. Returns no block where that has
  /// no room for it, and none in a forked child.
  HostBlock take(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  /// Whether there would be room for such a block if all others were released.
  bool may_hold(uint64_t bytes) const { return bytes <= config_.budget_bytes; }
  /// Whether allocate() may map memory for such a block: the budget allows it once free chunks have
  /// gone, and the machine did not refuse memory the last time.
  bool may_grow(uint64_t bytes) const TENCACHE_EXCLUDES(mutex_);
  /// Takes a block beyond the budget. Returns kNoSpace where the machine has no room for it,
  /// kOutOfMemory when the kernel refuses it, and kFailedPrecondition in a forked child.
  Result<HostBlock> allocate_beyond_budget(uint64_t bytes) TENCACHE_EXCLUDES(grow_mutex_, mutex_);

  /// Gives a block back. REQUIRES: nothing reads or writes it any more.
  void release(const HostBlock& block) TENCACHE_EXCLUDES(mutex_);

  /// Unmaps chunks in which no block lies, the oldest first, until `bytes` went or none is left.
  /// Returns the bytes that went. May stop the device.
  uint64_t trim(uint64_t bytes = ~uint64_t{0}) TENCACHE_EXCLUDES(mutex_);

  uint64_t budget_bytes() const { return config_.budget_bytes; }
  HostTierStats stats() const TENCACHE_EXCLUDES(mutex_);
  /// The peaks begin anew with what is taken now.
  void reset_peaks() TENCACHE_EXCLUDES(mutex_);
  /// The totals of what was mapped and unmapped begin anew.
  void reset_totals() TENCACHE_EXCLUDES(mutex_);
  /// Checks the invariants by walking everything. It is for tests.
  bool is_valid() const TENCACHE_EXCLUDES(mutex_);

 private:
  struct Chunk {
    HostMemory memory;
    uint64_t first_unit = 0;  // of its range in ranges_
    bool is_pinned = false;
  };

  explicit HostTier(HostTierConfig config);
  Status refused_in_child() const;
  void release_beyond_budget(const HostBlock& block) TENCACHE_EXCLUDES(mutex_);
  HostBlock take_block(uint64_t bytes) TENCACHE_REQUIRES(mutex_);
  const Chunk& chunk_of(uint64_t unit) const TENCACHE_REQUIRES(mutex_);
  Result<HostBlock> grow_and_take(uint64_t bytes) TENCACHE_EXCLUDES(grow_mutex_, mutex_);
  Result<Chunk> make_chunk(uint64_t wanted_bytes, uint64_t enough_bytes)
      TENCACHE_REQUIRES(grow_mutex_);
  Result<HostMemory> make_memory(uint64_t bytes) TENCACHE_REQUIRES(grow_mutex_);
  bool pin(const HostMemory& memory) TENCACHE_REQUIRES(grow_mutex_);
  bool may_trim(uint64_t bytes) const TENCACHE_EXCLUDES(mutex_);
  uint64_t free_chunk_bytes() const TENCACHE_REQUIRES(mutex_);
  // Whether the budget has room for a chunk of that size, once free chunks have gone.
  bool may_map(uint64_t bytes) const TENCACHE_REQUIRES(mutex_);
  uint64_t next_chunk_bytes(uint64_t block_bytes, uint64_t room_bytes) const
      TENCACHE_REQUIRES(mutex_);
  Status budget_exhausted(uint64_t bytes) const TENCACHE_REQUIRES(mutex_);

  // Members that are constant after construction.
  HostTierConfig config_;
  const pid_t owner_pid_;

  Mutex grow_mutex_ TENCACHE_ACQUIRED_BEFORE(mutex_);  // held while a chunk is made
  bool refusal_is_logged_ TENCACHE_GUARDED_BY(grow_mutex_) = false;

  mutable Mutex mutex_;
  RangeAllocator ranges_ TENCACHE_GUARDED_BY(mutex_);      // in units of kIoAlignment
  std::vector<Chunk> chunks_ TENCACHE_GUARDED_BY(mutex_);  // ascending by first_unit
  std::map<const char*, HostMemory> beyond_budget_ TENCACHE_GUARDED_BY(mutex_);
  bool was_growth_refused_ TENCACHE_GUARDED_BY(mutex_) = false;  // the last time
  HostTierStats stats_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
