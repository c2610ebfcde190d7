// SPDX-License-Identifier: Apache-2.0
//
// BlockTable: the books of a BlockPool, i.e. its segments and the blocks that they are cut into. It
// finds the smallest free block that fits, splits it, joins free neighbours, and finds the block of
// an address. It knows nothing of the device: who may use what when is the pool's affair.
//
// Invariants:
//   1. The blocks of a segment cover it without gap or overlap; each is a multiple of 512 bytes.
//   2. No two free blocks of a segment are neighbours.
//   3. A segment is of one kind, small or large, and of one owner, on whose stream its free blocks
//      may be used at once. The owner changes only while the segment is one claimed block.
//   4. A free block is in free_ of its kind and owner; when it is a whole segment, that one is in
//      whole_ too.
//
// Every step costs O(log n), and allocates memory only while there are more blocks than ever
// before: a block that goes waits in spare_ with its places in the trees.
//
// Threads: none of its own; the pool locks. A Block or Segment stays where it is while it exists.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
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
// From here on PyTorch's own allocator gives a request a segment of its own.
inline constexpr uint64_t kOwnSegmentBytesMin = kLargeSegmentBytes / 2;
inline constexpr uint64_t kSegmentUnitBytes = 2 * kMiB;
inline constexpr uint64_t kBlockBytesMax = uint64_t{1} << 40;  // far above any device

enum class BlockState : uint8_t {
  kFree,     // anybody's who may use the owner's stream
  kActive,   // the program's
  kWaiting,  // freed, but streams may still use it; or claimed by a thread
};

struct Segment {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  StreamSet owner = 0;
  bool is_small = false;
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
  uint64_t requested_bytes = 0;  // 0 unless it is the program's, or was and still waits
  StreamSet users = 0;           // that it was noted for, the owner aside; 0 unless it is active
  BlockState state = BlockState::kFree;
  Segment* segment = nullptr;
  // Its place in each tree, or the node to take one with. place: while it exists. free_place: while
  // it is free.
  BlocksByAddress::iterator place;
  BlocksByAddress::node_type place_node;
  FreeBlocks::iterator free_place;
  FreeBlocks::node_type free_node;
};

/// Of all segments of one kind, small or large. What is neither free nor active waits.
struct BlockFigures {
  uint64_t segment_bytes = 0;
  uint64_t segment_count = 0;
  uint64_t block_count = 0;
  uint64_t active_bytes = 0;
  uint64_t active_count = 0;
  uint64_t free_bytes = 0;
  uint64_t free_count = 0;
  uint64_t whole_bytes = 0;  // of these, in segments that are wholly free
  uint64_t whole_count = 0;

  // Free blocks of segments that are in use otherwise.
  uint64_t split_bytes() const { return free_bytes - whole_bytes; }
  uint64_t split_count() const { return free_count - whole_count; }
};

class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  /// What a request becomes: its kind follows from the rounded bytes.
  static uint64_t block_bytes(uint64_t bytes) { return round_up(bytes, kBlockUnitBytes); }
  static bool is_small(uint64_t bytes) { return block_bytes(bytes) <= kSmallBlockBytesMax; }
  /// The same of a request that has memory of its own, an extent: as much as PyTorch's own
  /// allocator would give it. The rest counts as a free block.
  static uint64_t block_bytes_of(uint64_t bytes, uint64_t extent_bytes);
  /// What a segment for that request has, where large segments have so much. From half of that on a
  /// request has a segment of its own size, as with PyTorch's own allocator: a large segment would
  /// seldom hold two of them.
  static uint64_t segment_bytes_for(uint64_t bytes, uint64_t large_segment_bytes);

  void add_segment(CUdeviceptr address, uint64_t bytes, StreamSet owner, bool is_small);

  /// The smallest free block of that owner that holds the request, cut to its size when enough
  /// remains, and active now. Null when there is none.
  Block* take(uint64_t bytes, StreamSet owner);
  /// The block that contains the address, in whatever state; null when it is in no segment.
  Block* find(CUdeviceptr address) const;
  /// The program is done with it: active -> waiting. It forgets who used it.
  void retire(Block* block);
  /// Nobody uses it any more: waiting -> free, joined with its free neighbours.
  void release(Block* block);

  /// Claims a segment that is one free block: its block is waiting then, until it is released or
  /// the segment removed. Null when none holds the request, of its kind and of an owner that is not
  /// among those; the one that became free last goes first.
  Block* claim_whole(uint64_t bytes, StreamSet excluded_owners);
  /// Claims those that have been free longest, until they make up the bytes or none is left.
  std::vector<Block*> claim_oldest(uint64_t bytes, StreamSet excluded_owners);
  /// Forgets the segment of a claimed block.
  void remove_segment(Block* block);

  /// In the order of their addresses.
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

  std::map<CUdeviceptr, Segment> segments_;
  BlocksByAddress blocks_;
  std::array<std::array<FreeBlocks, 64>, 2> free_;  // by kind and by the owner's bit
  WholeSegments whole_;                             // front: became free last
  std::deque<Block> storage_;                       // of every block there ever was at once
  std::vector<Block*> spare_;
  std::array<BlockFigures, 2> figures_;  // by kind
};

}  // namespace tencache
