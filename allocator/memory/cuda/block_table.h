// SPDX-License-Identifier: Apache-2.0
//
// BlockTable: the books of a BlockPool, i.e. its segments and the blocks that they are cut into. It
// finds the smallest free block that fits, splits it, joins free neighbours, and finds the block of
// an address. It knows nothing of the device: the pool decides who may use what when.
//
// Invariants:
//   1. The blocks of a segment cover it without gap or overlap; each is a multiple of 512 bytes.
//   2. No two free blocks of a segment are neighbours.
//   3. A segment is of one kind, small or large, and of one owner, on whose stream its free blocks
//      may be used at once. The owner changes only while the segment is one claimed block.
//   4. A free block is in free_ of its kind and owner. If it is a whole segment, that segment is in
//      whole_, too.
//
// A step costs O(log n), but for the walks over wholly free segments. It allocates memory only for
// a new segment, or when there are more blocks than ever before: a block that goes waits in spare_
// with its nodes of the trees.
//
// Threads: none of its own; the pool locks. A Block or Segment keeps its address while it exists.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/units.h"
#include "memory/intrusive_list.h"
#include "platform/cuda/stream_numbers.h"

namespace tencache {

inline constexpr uint64_t kBlockUnitBytes = 512;
inline constexpr uint64_t kSmallBlockBytesMax = kMiB;
inline constexpr uint64_t kSmallSegmentBytes = 2 * kMiB;
inline constexpr uint64_t kLargeSegmentBytes = 20 * kMiB;  // at most
// From this size on, PyTorch's own allocator gives a request a segment of its own.
inline constexpr uint64_t kOwnSegmentBytesMin = kLargeSegmentBytes / 2;
inline constexpr uint64_t kSegmentUnitBytes = 2 * kMiB;
inline constexpr uint64_t kBlockBytesMax = uint64_t{1} << 40;  // far above any device

enum class BlockState : uint8_t {
  kFree,     // for anyone who may use the owner's stream
  kActive,   // the program's
  kWaiting,  // freed, but streams may still use it; or claimed by a thread
};

struct Segment {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  StreamSet owner = 0;
  bool is_small = false;
  // The number of the segment's free in FreeMarks, while the segment is wholly free and once a trim
  // has numbered it.
  std::optional<uint64_t> free_number;
  ListHook<Segment> whole_hook;
};

struct Block;

struct FreeKey {
  uint64_t bytes;
  CUdeviceptr address;
  Block* block;

  bool operator<(const FreeKey& other) const {
    return bytes != other.bytes ? bytes < other.bytes : address < other.address;
  }
};
using FreeBlocks = std::set<FreeKey>;
using BlocksByAddress = std::map<CUdeviceptr, Block*>;

struct Block {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  uint64_t requested_bytes = 0;       // 0 unless it is the program's, or was and still waits
  uint64_t last_requested_bytes = 0;  // of the block freed last in it or around it; 0: none
  StreamSet users = 0;                // streams noted for it; 0 unless active
  BlockState state = BlockState::kFree;
  Segment* segment = nullptr;
  // The block's place in each tree while it is there, else the node to insert it with. A block is
  // in the tree of addresses while it exists, in the tree of free blocks while it is free.
  BlocksByAddress::iterator place;
  BlocksByAddress::node_type place_node;
  FreeBlocks::iterator free_place;
  FreeBlocks::node_type free_node;
};

/// Figures of all segments of one kind, small or large.
struct BlockFigures {
  uint64_t segment_bytes = 0;
  uint64_t active_bytes = 0;
  // Free blocks of segments that are otherwise in use.
  uint64_t split_bytes = 0;
  uint64_t split_count = 0;
};

class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  /// The rounded bytes of a request; its kind follows from them.
  static uint64_t block_bytes(uint64_t bytes) { return round_up(bytes, kBlockUnitBytes); }
  static bool is_small(uint64_t bytes) { return block_bytes(bytes) <= kSmallBlockBytesMax; }
  /// The block size of a request that has an extent of its own: as much as PyTorch's own allocator
  /// would give it. The rest of the extent counts as a free block.
  static uint64_t block_bytes_of(uint64_t bytes, uint64_t extent_bytes);
  /// The size of a segment for this request, where large segments have `large_segment_bytes`. From
  /// half of that on, a request has a segment of its own size, as with PyTorch's own allocator: a
  /// large segment would seldom hold two of them.
  static uint64_t segment_bytes_for(uint64_t bytes, uint64_t large_segment_bytes);

  void add_segment(CUdeviceptr address, uint64_t bytes, StreamSet owner, bool is_small);

  /// Takes the smallest free block of that owner that holds the request. Cuts it to size when
  /// enough remains, and makes it active. Returns null when there is none.
  Block* take(uint64_t bytes, StreamSet owner);
  /// Takes exactly this stretch, which must lie in one free block.
  Block* take_at(CUdeviceptr address, uint64_t bytes, uint64_t requested_bytes);
  /// The block that contains the address, in whatever state. Returns null when it is in no segment.
  Block* find(CUdeviceptr address) const;
  /// The program is done with the block: active -> waiting. The block forgets who used it.
  void retire(Block* block);
  /// Nobody uses the block any more: waiting -> free, joined with its free neighbours.
  void release(Block* block);

  /// Claims a free block: free -> waiting, until it is released or its segment is removed.
  void claim(Block* block);
  /// Claims a segment that is one free block, which then waits until it is released or the segment
  /// is removed. The segment must fit the request and its kind, and have none of the excluded
  /// owners. Where there are several, takes the one that became free last. Returns null when there
  /// is none.
  Block* claim_whole(uint64_t bytes, StreamSet excluded_owners);
  /// Claims wholly free segments for which `accepts(const Segment&)` is true, oldest first, until
  /// they make up `bytes` or none is left.
  template <typename Accepts>
  std::vector<Block*> claim_oldest(uint64_t bytes, const Accepts& accepts) {
    std::vector<Block*> claimed;
    uint64_t claimed_bytes = 0;
    Segment* newer = nullptr;
    for (Segment* segment = whole_.back(); segment != nullptr && claimed_bytes < bytes;
         segment = newer) {
      newer = WholeSegments::previous(segment);
      if (!accepts(*segment)) continue;
      Block* const block = blocks_.find(segment->address)->second;
      claim(block);
      claimed_bytes += block->bytes;
      claimed.push_back(block);
    }
    return claimed;
  }
  /// Calls `visit(Segment&)` for each wholly free segment.
  template <typename Visit>
  void for_each_whole(const Visit& visit) {
    for (Segment* segment = whole_.front(); segment != nullptr;
         segment = WholeSegments::next(segment)) {
      visit(*segment);
    }
  }
  /// Makes the segment another stream's from now on. REQUIRES: the block is a whole segment, and
  /// claimed.
  void change_owner(Block* block, StreamSet owner);
  /// Forgets the segment of a claimed block.
  void remove_segment(Block* block);

  /// The segments and the blocks, both in ascending order of address.
  const std::map<CUdeviceptr, Segment>& segments() const { return segments_; }
  const BlocksByAddress& blocks() const { return blocks_; }
  const BlockFigures& figures(bool is_small) const { return figures_[is_small ? 1 : 0]; }
  uint64_t active_bytes() const { return figures_[0].active_bytes + figures_[1].active_bytes; }
  uint64_t segment_bytes() const { return figures_[0].segment_bytes + figures_[1].segment_bytes; }

 private:
  using WholeSegments = IntrusiveList<Segment, &Segment::whole_hook>;

  FreeBlocks& free_blocks(const Segment& segment) {
    return free_blocks(segment.is_small, segment.owner);
  }
  FreeBlocks& free_blocks(bool is_small, StreamSet owner);
  BlockFigures& figures_of(const Block& block) { return figures_[block.segment->is_small ? 1 : 0]; }
  Block* new_block(CUdeviceptr address, uint64_t bytes, Segment* segment,
                   BlocksByAddress::iterator next);
  void drop_block(Block* block);
  void enter_free(Block* block);
  void leave_free(Block* block);
  void split(Block* block, uint64_t bytes);
  void activate(Block* block, uint64_t requested_bytes);

  std::map<CUdeviceptr, Segment> segments_;
  BlocksByAddress blocks_;
  std::array<std::array<FreeBlocks, 64>, 2> free_;  // by kind and by the owner's bit
  WholeSegments whole_;                             // front: became free last
  std::deque<Block> storage_;                       // as many as ever existed at once
  std::vector<Block*> spare_;
  std::array<BlockFigures, 2> figures_;  // by kind
};

}  // namespace tencache
