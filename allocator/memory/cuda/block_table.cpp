// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/block_table.h"

#include <bit>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace tencache {
namespace {

// Whether the remainder of a block becomes a block of its own. It stays with the block when no
// request of the block's kind could use the remainder. A large request is above 1 MiB.
bool is_worth_splitting(bool is_small, uint64_t remaining_bytes) {
  return is_small ? remaining_bytes >= kBlockUnitBytes : remaining_bytes > kSmallBlockBytesMax;
}

}  // namespace

uint64_t BlockTable::block_bytes_of(uint64_t bytes, uint64_t extent_bytes) {
  const uint64_t needed_bytes = block_bytes(bytes);
  if (needed_bytes >= extent_bytes) return extent_bytes;
  // PyTorch cuts a block below kOwnSegmentBytesMin, and any that leaves a rest worth keeping.
  const bool is_cut =
      needed_bytes < kOwnSegmentBytesMin || is_worth_splitting(false, extent_bytes - needed_bytes);
  return is_cut ? needed_bytes : extent_bytes;
}

uint64_t BlockTable::segment_bytes_for(uint64_t bytes, uint64_t large_segment_bytes) {
  if (is_small(bytes)) return kSmallSegmentBytes;
  if (block_bytes(bytes) < large_segment_bytes / 2) return large_segment_bytes;
  return round_up(bytes, kSegmentUnitBytes);
}

FreeBlocks& BlockTable::free_blocks(bool is_small, StreamSet owner) {
  return free_[is_small ? 1 : 0][static_cast<size_t>(std::countr_zero(owner))];
}

void BlockTable::add_segment(CUdeviceptr address, uint64_t bytes, StreamSet owner, bool is_small) {
  TENCACHE_CHECK(address % kBlockUnitBytes == 0 && bytes % kBlockUnitBytes == 0,
                 "a segment at %#llx", address);
  TENCACHE_CHECK(has_one_bit(owner), "%#lx", owner);
  const auto next = blocks_.lower_bound(address);
  TENCACHE_CHECK(next == blocks_.end() || next->first >= address + bytes,
                 "%#llx is in a segment already", address);
  TENCACHE_CHECK(find(address) == nullptr, "%#llx is in a segment already", address);
  Segment& segment = segments_[address];
  segment = {address, bytes, owner, is_small, std::nullopt, {}};
  figures_[is_small ? 1 : 0].segment_bytes += bytes;
  enter_free(new_block(address, bytes, &segment, next));
}

Block* BlockTable::new_block(CUdeviceptr address, uint64_t bytes, Segment* segment,
                             BlocksByAddress::iterator next) {
  Block* block = nullptr;
  if (spare_.empty()) {
    block = &storage_.emplace_back();
    block->place = blocks_.emplace_hint(next, address, block);
  } else {
    block = spare_.back();
    spare_.pop_back();
    block->place_node.key() = address;
    block->place = blocks_.insert(next, std::move(block->place_node));
  }
  block->address = address;
  block->bytes = bytes;
  block->requested_bytes = 0;
  block->last_requested_bytes = 0;
  block->users = 0;
  block->state = BlockState::kWaiting;
  block->segment = segment;
  return block;
}

void BlockTable::drop_block(Block* block) {
  block->place_node = blocks_.extract(block->place);
  spare_.push_back(block);
}

void BlockTable::enter_free(Block* block) {
  block->state = BlockState::kFree;
  FreeBlocks& free = free_blocks(*block->segment);
  const FreeKey key = {block->bytes, block->address, block};
  if (block->free_node.empty()) {
    block->free_place = free.insert(key).first;
  } else {
    block->free_node.value() = key;
    block->free_place = free.insert(std::move(block->free_node)).position;
  }
  if (block->bytes == block->segment->bytes) return whole_.push_front(block->segment);
  figures_of(*block).split_bytes += block->bytes;
  figures_of(*block).split_count += 1;
}

void BlockTable::leave_free(Block* block) {
  block->free_node = free_blocks(*block->segment).extract(block->free_place);
  if (block->bytes == block->segment->bytes) return whole_.remove(block->segment);
  figures_of(*block).split_bytes -= block->bytes;
  figures_of(*block).split_count -= 1;
}

Block* BlockTable::take(uint64_t bytes, StreamSet owner) {
  const uint64_t needed_bytes = block_bytes(bytes);
  const bool small = is_small(bytes);
  FreeBlocks& free = free_blocks(small, owner);
  const auto found = free.lower_bound({needed_bytes, 0, nullptr});
  if (found == free.end()) return nullptr;
  Block* const block = found->block;
  leave_free(block);
  if (is_worth_splitting(small, block->bytes - needed_bytes)) split(block, needed_bytes);
  activate(block, bytes);
  return block;
}

Block* BlockTable::take_at(CUdeviceptr address, uint64_t bytes, uint64_t requested_bytes) {
  Block* block = find(address);
  const bool is_there = block != nullptr && block->state == BlockState::kFree &&
                        address + bytes <= block->address + block->bytes;
  TENCACHE_CHECK(is_there, "%lu bytes at %#llx are not free", bytes, address);
  leave_free(block);
  if (address > block->address) {
    Block* const before = block;
    split(before, address - before->address);
    enter_free(before);
    block = find(address);
    leave_free(block);
  }
  if (bytes < block->bytes) split(block, bytes);
  activate(block, requested_bytes);
  return block;
}

void BlockTable::activate(Block* block, uint64_t requested_bytes) {
  block->segment->free_number.reset();
  block->state = BlockState::kActive;
  block->requested_bytes = requested_bytes;
  figures_of(*block).active_bytes += block->bytes;
}

// Makes a free block of what lies behind `bytes`. It has no free neighbour, as the block had none.
void BlockTable::split(Block* block, uint64_t bytes) {
  Block* const rest = new_block(block->address + bytes, block->bytes - bytes, block->segment,
                                std::next(block->place));
  rest->last_requested_bytes = block->last_requested_bytes;
  block->bytes = bytes;
  enter_free(rest);
}

Block* BlockTable::find(CUdeviceptr address) const {
  const auto behind = blocks_.upper_bound(address);
  if (behind == blocks_.begin()) return nullptr;
  Block* const block = std::prev(behind)->second;
  return address - block->address < block->bytes ? block : nullptr;
}

void BlockTable::retire(Block* block) {
  TENCACHE_DCHECK(block->state == BlockState::kActive);
  block->state = BlockState::kWaiting;
  block->users = 0;
  figures_of(*block).active_bytes -= block->bytes;
}

void BlockTable::release(Block* block) {
  TENCACHE_DCHECK(block->state == BlockState::kWaiting);
  // A block that was only claimed keeps what it knows.
  if (block->requested_bytes > 0) {
    block->last_requested_bytes = std::exchange(block->requested_bytes, 0);
  }
  const auto next = std::next(block->place);
  if (next != blocks_.end()) {
    Block* const behind = next->second;
    if (behind->segment == block->segment && behind->state == BlockState::kFree) {
      leave_free(behind);
      block->bytes += behind->bytes;
      drop_block(behind);
    }
  }
  if (block->place != blocks_.begin()) {
    Block* const before = std::prev(block->place)->second;
    if (before->segment == block->segment && before->state == BlockState::kFree) {
      leave_free(before);
      before->bytes += block->bytes;
      before->last_requested_bytes = block->last_requested_bytes;
      drop_block(block);
      block = before;
    }
  }
  enter_free(block);
}

void BlockTable::claim(Block* block) {
  leave_free(block);
  block->state = BlockState::kWaiting;
}

Block* BlockTable::claim_whole(uint64_t bytes, StreamSet excluded_owners) {
  for (Segment* segment = whole_.front(); segment != nullptr;
       segment = WholeSegments::next(segment)) {
    if (segment->is_small != is_small(bytes) || segment->bytes < block_bytes(bytes) ||
        (segment->owner & excluded_owners) != 0) {
      continue;
    }
    Block* const block = blocks_.find(segment->address)->second;
    claim(block);
    return block;
  }
  return nullptr;
}

void BlockTable::change_owner(Block* block, StreamSet owner) {
  TENCACHE_DCHECK(block->state == BlockState::kWaiting && block->bytes == block->segment->bytes);
  block->segment->owner = owner;
  block->segment->free_number.reset();
}

void BlockTable::remove_segment(Block* block) {
  TENCACHE_CHECK(block->state == BlockState::kWaiting && block->bytes == block->segment->bytes,
                 "the segment at %#llx is in use", block->segment->address);
  figures_of(*block).segment_bytes -= block->bytes;
  const CUdeviceptr address = block->segment->address;
  drop_block(block);
  segments_.erase(address);
}

}  // namespace tencache
