// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/block_pool.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace tencache {
namespace {

SplitChange change_of(const BlockFigures& before, const BlockFigures& after) {
  return {static_cast<int64_t>(after.split_bytes) - static_cast<int64_t>(before.split_bytes),
          static_cast<int64_t>(after.split_count) - static_cast<int64_t>(before.split_count)};
}

}  // namespace

BlockPool::~BlockPool() {
  const uint64_t used = used_bytes();
  TENCACHE_CHECK(used == 0, "%s of blocks are still in use", format_bytes(used).c_str());
  while (poll(Patience::kForOneStream)) {
  }
  trim(~uint64_t{0});
  const uint64_t lost_bytes = segment_bytes();
  if (lost_bytes == 0) return;
  TENCACHE_LOG_WARNING(
      "%s of GPU memory are not given back: it is unknown whether the GPU is done with them.",
      format_bytes(lost_bytes).c_str());
}

Block* BlockPool::take_counted(uint64_t bytes, StreamSet stream) {
  const bool is_small = BlockTable::is_small(bytes);
  const BlockFigures before = table_.figures(is_small);
  Block* const block = table_.take(bytes, stream);
  if (block != nullptr) count_taken(*block, before);
  return block;
}

// Counts a block that was taken. `before` has the figures of the block's kind from before that.
void BlockPool::count_taken(const Block& block, const BlockFigures& before) {
  const bool is_small = block.segment->is_small;
  use_.allocate(is_small, block.bytes, block.requested_bytes,
                change_of(before, table_.figures(is_small)));
}

// Releases a block that the program had, and counts that in use_. Blocks that the pool only claimed
// are released in the table alone: use_ has counted the end of the program's use of them before.
void BlockPool::release_counted(Block* block) {
  const bool is_small = block->segment->is_small;
  const uint64_t bytes = block->bytes;
  const uint64_t requested_bytes = block->requested_bytes;
  const BlockFigures before = table_.figures(is_small);
  table_.release(block);
  use_.complete(is_small, bytes, requested_bytes, change_of(before, table_.figures(is_small)));
}

// The address of a block that is the program's does not change, so it is read without the lock.
Result<CUdeviceptr> BlockPool::allocate(uint64_t bytes, StreamSet stream) {
  TENCACHE_CHECK(bytes > 0 && bytes <= kBlockBytesMax, "%lu bytes", bytes);
  TENCACHE_CHECK(has_one_bit(stream), "%#lx is not one stream", stream);
  if (waiting_.is_turn()) [[unlikely]] {
    poll(Patience::kNone);
  }
  const Block* block = take(bytes, stream);
  if (block == nullptr) [[unlikely]] {
    TENCACHE_RETURN_IF_ERROR(take_slow(bytes, stream).move_to(&block));
  }
  return block->address;
}

TENCACHE_SLOW Result<const Block*> BlockPool::take_slow(uint64_t bytes, StreamSet stream) {
  // 1. Blocks that wait may be free by now.
  if (poll()) {
    if (const Block* block = take(bytes, stream); block != nullptr) return block;
  }
  // 2. Another stream may have a segment that it does not need.
  if (adopt(bytes, stream)) {
    if (const Block* block = take(bytes, stream); block != nullptr) return block;
  }
  // 3. Make a new segment. Where that fails, another thread may have freed a block meanwhile.
  const uint64_t segment_bytes =
      BlockTable::segment_bytes_for(bytes, source_.large_segment_bytes());
  const Result<CUdeviceptr> made = source_.make(segment_bytes, BlockTable::is_small(bytes), stream);
  MutexLock lock(mutex_);
  if (made.is_ok()) {
    table_.add_segment(made.value(), segment_bytes, stream, BlockTable::is_small(bytes));
  }
  const Block* const block = take_counted(bytes, stream);
  if (block == nullptr) return made.status();
  return block;
}

StreamSet BlockPool::streams_to_wait_for(StreamSet owner, StreamSet users) {
  return StreamNumbers::is_one_stream(owner) ? users & ~owner : users | owner;
}

bool BlockPool::free(CUdeviceptr address) {
  Block* block = nullptr;
  StreamSet streams = 0;
  {
    MutexLock lock(mutex_);
    block = table_.find(address);
    if (block == nullptr) return false;
    TENCACHE_CHECK(block->address == address && block->state == BlockState::kActive,
                   "%#llx is freed, but no block in use begins there: freed twice?", address);
    streams = streams_to_wait_for(block->segment->owner, block->users);
    table_.retire(block);
    use_.free(block->segment->is_small, block->bytes);
    if (streams == 0) [[likely]] {
      release_counted(block);
      return true;
    }
  }
  waiting_.add(block, {{&numbers_, streams}});
  return true;
}

bool BlockPool::note_use(CUdeviceptr address, StreamSet streams) {
  MutexLock lock(mutex_);
  Block* const block = table_.find(address);
  if (block == nullptr) return false;
  TENCACHE_CHECK(block->state == BlockState::kActive,
                 "%#llx is used by another stream, but it was freed", address);
  block->users |= streams;
  return true;
}

std::optional<FoundBlock> BlockPool::find(CUdeviceptr address) const {
  MutexLock lock(mutex_);
  const Block* const block = table_.find(address);
  if (block == nullptr || block->state != BlockState::kActive) return std::nullopt;
  const Segment& segment = *block->segment;
  return FoundBlock{segment.address,
                    segment.bytes,
                    block->address,
                    block->bytes,
                    block->requested_bytes,
                    segment.owner,
                    streams_to_wait_for(segment.owner, block->users) != 0,
                    0};
}

void BlockPool::release(Block* block) {
  if (block->requested_bytes > 0) {
    source_.note_completed(block->address, block->requested_bytes);
    return release_counted(block);
  }
  table_.release(block);  // a whole segment that changed its stream
}

// Frees the waiting blocks that streams are done with. Returns whether something may have become
// free.
bool BlockPool::poll(Patience patience) {
  return waiting_.poll(patience, [this](const std::vector<Block*>& over) {
    MutexLock lock(mutex_);
    for (Block* block : over) release(block);
  });
}

// Makes a wholly free segment of another stream this stream's. Returns false when none can be had.
// The shared bit cannot be held back. So for it the segment waits, and can be had once the old
// owner's stream is done.
bool BlockPool::adopt(uint64_t bytes, StreamSet stream) {
  StreamSet excluded = stream;
  for (;;) {
    Block* block = nullptr;
    StreamSet owner = 0;
    {
      MutexLock lock(mutex_);
      block = table_.claim_whole(bytes, excluded);
      if (block == nullptr) return false;
      owner = block->segment->owner;
    }
    std::vector<StreamMark> marks;
    // The shared bit's free memory is idle.
    Status marked;
    if (owner != StreamNumbers::kShared) marked = numbers_.mark_all(owner, &marks);
    Status held = marked;
    if (marked.is_ok() && stream != StreamNumbers::kShared) {
      held = numbers_.hold_back(stream, marks);
    }
    if (!held.is_ok()) waiting_.note_failure(held);
    const bool waits = held.is_ok() && stream == StreamNumbers::kShared;
    {
      MutexLock lock(mutex_);
      if (held.is_ok()) table_.change_owner(block, stream);
      if (!waits) table_.release(block);
    }
    if (waits) {
      waiting_.add(block, {{&numbers_, owner}}, std::move(marks));
      return poll();
    }
    if (held.is_ok()) return true;
    // A stream that cannot be held back for one owner cannot be for the others either.
    if (marked.is_ok()) return false;
    excluded |= owner;
  }
}

uint64_t BlockPool::trim_idle(uint64_t bytes) {
  poll(Patience::kNone);
  note_whole();
  free_marks_.poll();
  std::vector<Block*> claimed;
  {
    MutexLock lock(mutex_);
    claimed = table_.claim_oldest(bytes, [this](const Segment& segment) {
      return segment.free_number && free_marks_.is_over(segment.owner, *segment.free_number);
    });
  }
  return give_back(claimed, kNoStreams);
}

// Numbers the segments that have become wholly free. Only a trim does this, since segments become
// wholly free all the time, and their memory is seldom wanted back.
void BlockPool::note_whole() {
  MutexLock lock(mutex_);
  table_.for_each_whole([this](Segment& segment) {
    if (segment.free_number) return;
    segment.free_number = free_marks_.note_free(segment.owner, segment.bytes, FreeMarks::kNoMark);
  });
}

uint64_t BlockPool::trim(uint64_t bytes) {
  poll();
  StreamSet refused = kNoStreams;
  uint64_t given_bytes = trim_idle(bytes);
  while (given_bytes < bytes) {
    std::vector<Block*> claimed;
    note_whole();
    {
      MutexLock lock(mutex_);
      claimed = table_.claim_oldest(bytes - given_bytes, [refused](const Segment& segment) {
        return segment.free_number && (segment.owner & refused) == 0;
      });
    }
    if (claimed.empty()) break;
    refused |= wait_for_owners(claimed);
    given_bytes += give_back(claimed, refused);
  }
  return given_bytes;
}

// Waits until the device is done with the claimed segments. Returns the owners that could not be
// waited for.
StreamSet BlockPool::wait_for_owners(const std::vector<Block*>& claimed) {
  StreamSet refused = kNoStreams;
  for (const Block* block : claimed) {
    const Segment& segment = *block->segment;
    if ((segment.owner & refused) != 0) continue;
    if (!free_marks_.wait(segment.owner, *segment.free_number)) refused |= segment.owner;
  }
  return refused;
}

// Gives claimed segments back to the source, but those of refused owners become free again. Returns
// how many bytes went. REQUIRES: the device is done with the others.
uint64_t BlockPool::give_back(const std::vector<Block*>& claimed, StreamSet refused) {
  std::vector<CUdeviceptr> addresses;
  uint64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    for (Block* block : claimed) {
      if ((block->segment->owner & refused) != 0) {
        table_.release(block);
        continue;
      }
      addresses.push_back(block->address);
      bytes += block->bytes;
      // The table forgets the segment before the source gets it back, because the source may give
      // another thread the same address at once.
      table_.remove_segment(block);
    }
    leaving_bytes_ += bytes;
  }
  for (const CUdeviceptr address : addresses) source_.give_back(address);
  MutexLock lock(mutex_);
  leaving_bytes_ -= bytes;
  return bytes;
}

Status BlockPool::wait_for(StreamSet streams) {
  std::vector<StreamMark> marks;
  Status status = numbers_.mark_all(streams, &marks);
  for (const StreamMark& mark : marks) {
    if (status.is_ok()) status = mark.wait();
  }
  return status;
}

Result<RestoredBlocks> BlockPool::restore(const std::vector<SegmentView>& state) {
  poll(Patience::kForAllStreams);
  StreamSet users = 0;
  {
    MutexLock lock(mutex_);
    TENCACHE_RETURN_IF_ERROR(users_before(state).move_to(&users));
  }
  TENCACHE_RETURN_IF_ERROR(wait_for(users));
  MutexLock lock(mutex_);
  TENCACHE_RETURN_IF_ERROR(users_before(state).status());
  RestoredBlocks restored;
  restored.freed = free_all();
  for (const SegmentView& segment : state) lay_out(segment, &restored.allocated);
  return restored;
}

// The streams that must be done with the pool's blocks before it can be put back to that state.
Result<StreamSet> BlockPool::users_before(const std::vector<SegmentView>& state) const {
  StreamSet users = 0;
  for (const auto& [address, block] : table_.blocks()) {
    if (block->state == BlockState::kWaiting) {
      return Status(StatusCode::kFailedPrecondition,
                    "A stream still uses freed memory of the pool, and cannot be waited for.");
    }
    if (block->state == BlockState::kActive) {
      users |= streams_to_wait_for(block->segment->owner, block->users);
    }
  }
  for (const SegmentView& segment : state) {
    const auto found = table_.segments().find(segment.address);
    if (found == table_.segments().end() || found->second.bytes != segment.bytes ||
        found->second.is_small != segment.is_small) {
      return Status(StatusCode::kFailedPrecondition,
                    "Memory that the pool had then was given back since.");
    }
    // A segment that changes back to its stream must be idle.
    if (found->second.owner != segment.owner) users |= found->second.owner;
  }
  return users;
}

// Frees every block of the program. REQUIRES: no stream but the owner uses one.
std::vector<CUdeviceptr> BlockPool::free_all() {
  std::vector<CUdeviceptr> freed;
  for (const auto& [address, block] : table_.blocks()) {
    if (block->state == BlockState::kActive) freed.push_back(address);
  }
  for (const CUdeviceptr address : freed) {
    Block* const block = table_.find(address);
    table_.retire(block);
    use_.free(block->segment->is_small, block->bytes);
    release_counted(block);
  }
  return freed;
}

// Makes the blocks that the program had then its own again. REQUIRES: the segment is one free
// block.
void BlockPool::lay_out(const SegmentView& state, std::vector<CUdeviceptr>* allocated) {
  Block* const whole = table_.find(state.address);
  if (whole->segment->owner != state.owner) {
    table_.claim(whole);
    table_.change_owner(whole, state.owner);
    table_.release(whole);
  }
  for (const BlockView& view : state.blocks) {
    if (view.state != BlockState::kActive) continue;
    const BlockFigures before = table_.figures(state.is_small);
    Block* const block = table_.take_at(view.address, view.bytes, view.requested_bytes);
    block->users = view.streams & ~state.owner;
    count_taken(*block, before);
    allocated->push_back(view.address);
  }
}

uint64_t BlockPool::used_bytes() const {
  MutexLock lock(mutex_);
  return table_.active_bytes();
}

uint64_t BlockPool::segment_bytes() const {
  MutexLock lock(mutex_);
  return table_.segment_bytes() + leaving_bytes_;
}

std::vector<SegmentView> BlockPool::segments() const {
  std::vector<SegmentView> views;
  MutexLock lock(mutex_);
  for (const auto& [address, segment] : table_.segments()) {
    SegmentView& view = views.emplace_back();
    view.address = address;
    view.bytes = segment.bytes;
    view.owner = segment.owner;
    view.is_small = segment.is_small;
  }
  size_t at = 0;
  for (const auto& [address, block] : table_.blocks()) {
    // Both lists ascend by address, and every block is in a segment.
    while (views[at].address + views[at].bytes <= address) ++at;
    const bool is_free = block->state == BlockState::kFree;
    views[at].blocks.push_back({address, block->bytes,
                                is_free ? block->last_requested_bytes : block->requested_bytes,
                                block->segment->owner | block->users, block->state});
  }
  return views;
}

}  // namespace tencache
