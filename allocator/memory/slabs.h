// SPDX-License-Identifier: Apache-2.0
//
// Slabs: extents of one granule that smaller blocks are cut from. The table maps an address to its
// extent by granule, so the gate pins and fetches a slab as a whole. Thus blocks in it can leave
// although they are far smaller than an extent. CpuHeap cuts blocks where small tensors take a good
// part of the budget; one extent then serves for many of them (--extent-min, vm.max_map_count).
//
// A block is a run of whole pages. The slab that was cut last goes first, so that tensors which are
// made one after another, and used together, lie together. Then comes the slab with the least room
// that suffices. Nothing is cut from a slab that is cold: the block would be written page by page.
//
// Invariants:
//   1. Blocks of a slab do not overlap.
//   2. Every slab has at least one block.
//
// Threads: any. mutex_ is a leaf lock. Whether a slab is cold is a guess: it may become cold before
// its new block is used, which the gate notices (Gate::on_allocate_block).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "base/range_allocator.h"
#include "base/units.h"
#include "memory/extent.h"
#include "memory/heap.h"
#include "platform/address_arena.h"

namespace tencache {

class Slabs {
 public:
  static constexpr uint64_t kSlabBytes = kGranuleBytes;
  /// Smaller blocks would cost more than they could ever free.
  static constexpr uint64_t kBlockBytesMin = 32 * kKiB;
  /// Larger blocks are extents of their own: of a slab, too much would stay unused.
  static constexpr uint64_t kBlockBytesMax = kSlabBytes / 4;

  static constexpr bool serves(uint64_t bytes) {
    return bytes >= kBlockBytesMin && bytes <= kBlockBytesMax;
  }

  /// Cuts a block from a slab that exists. Returns nullopt when the request takes a new slab.
  std::optional<Allocation> cut(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  /// Makes a slab of this extent, and cuts a first block. REQUIRES: the extent has kSlabBytes, and
  /// nobody uses it.
  Allocation cut_from_new(Extent* extent, uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  /// Frees a block; anything else aborts. Returns whether it was the last: then the extent is no
  /// slab any more, and the caller ends it.
  bool free(Extent* slab, const char* address) TENCACHE_EXCLUDES(mutex_);

 private:
  friend struct HeapBooks;  // of the suites: walks over all of it

  struct Slab {
    explicit Slab(Extent* of) : extent(of) {}
    Extent* const extent;
    RangeAllocator pages{kSlabBytes / kPageBytes};
    std::map<uint64_t, uint64_t> blocks;  // first page -> page count
  };
  // The slabs by their longest run of free pages. The address tells slabs with equal runs apart.
  using ByRoom = std::set<std::pair<uint64_t, char*>>;

  Slab* find_room(uint64_t page_count) TENCACHE_REQUIRES(mutex_);
  Allocation cut_from(Slab& slab, uint64_t page_count) TENCACHE_REQUIRES(mutex_);
  void list(const Slab& slab) TENCACHE_REQUIRES(mutex_);
  void unlist(const Slab& slab) TENCACHE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::unordered_map<char*, std::unique_ptr<Slab>> slabs_ TENCACHE_GUARDED_BY(mutex_);
  ByRoom by_room_ TENCACHE_GUARDED_BY(mutex_);
  Slab* newest_ TENCACHE_GUARDED_BY(mutex_) = nullptr;  // what was cut last
};

}  // namespace tencache
