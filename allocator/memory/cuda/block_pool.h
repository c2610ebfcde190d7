// SPDX-License-Identifier: Apache-2.0
//
// BlockPool: allocations of one GPU, cut from segments as PyTorch's own caching allocator does it:
// those below the size of an extent, or all of a private pool. They are always resident. Requests
// are rounded up to 512 bytes. Those up to 1 MiB come from segments of 2 MiB, those below 10 MiB
// from segments of 20 MiB. Larger ones have segments of their own size, in multiples of 2 MiB.
// Where the source wants smaller large segments, requests from half of one on have segments of
// their own.
//
// A stream runs work in the order in which that was given. So a block that only its owner's stream
// has used is free for that stream the moment the program frees it, whatever the device is doing. A
// block that other streams used, too, waits until each of them has reached a mark that was made
// after the free. A wholly free segment may change to another stream, which is then held back until
// the old one has reached a mark. (Two streams must not share a pool when a kernel of one spins
// until a later kernel of the other has written a value: that later kernel could be held back for
// ever.) The bit that many streams share (StreamNumbers) is no stream: its blocks wait for all of
// its streams, and are idle once they are free.
//
// If a mark cannot be made, because a stream captures a graph or the driver refuses, only time is
// lost: the block waits, and the mark is tried again with the next poll. Memory that a captured
// graph uses must not be freed before the graph is gone; the pool does not know of graphs.
//
// A pool can be put back to an earlier state, so that the same addresses are in use as then.
// PyTorch's trees of CUDA graphs need that: a graph may be captured after another one whose replay
// has written its outputs to memory that was free meanwhile.
//
// Hot path: allocate() and free() of a block of the same stream cost the pool's lock, one or two
// short ones of ProgramUse, and a few steps in balanced trees. They allocate no memory, unless
// there are more blocks than ever before, and do not call the driver. Where blocks wait, some
// allocations poll (StreamQuarantine::is_turn).
//
// Threads: any. mutex_ is held only for bookkeeping, never across a call of the driver or the
// source. A block that a thread works on without the lock is claimed: it is waiting, and in no
// list.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "memory/cuda/block_table.h"
#include "memory/cuda/free_marks.h"
#include "memory/cuda/program_use.h"
#include "memory/cuda/segment_source.h"
#include "memory/cuda/stream_quarantine.h"
#include "platform/cuda/stream_mark.h"
#include "platform/cuda/stream_numbers.h"

namespace tencache {

/// A block as a snapshot of the memory shows it.
struct BlockView {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  uint64_t requested_bytes = 0;  // while free: of the block freed last in or around it; 0: none
  StreamSet streams = 0;         // the owner, and while active all streams that were noted for it
  BlockState state = BlockState::kFree;
};
struct SegmentView {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  StreamSet owner = 0;
  bool is_small = false;
  bool is_resident = true;        // false: its bytes are below, without device memory behind it
  uint64_t pool = 0;              // number of the private pool it belongs to; 0: none
  std::vector<BlockView> blocks;  // ascending; they cover the segment
};

/// A block that is the program's, and the segment or extent that it lies in.
struct FoundBlock {
  CUdeviceptr segment_address = 0;
  uint64_t segment_bytes = 0;
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  uint64_t requested_bytes = 0;
  StreamSet owner = 0;
  bool is_shared = false;  // other streams use it, too: once freed it waits for them
  uint64_t pool = 0;       // number of the private pool; 0: none
};

/// What BlockPool::restore() has changed. An address may be in both lists.
struct RestoredBlocks {
  std::vector<CUdeviceptr> freed;
  std::vector<CUdeviceptr> allocated;
};

class BlockPool {
 public:
  /// All of these outlive the pool. `use` counts what the program has.
  BlockPool(StreamNumbers& numbers, SegmentSource& source, ProgramUse& use)
      : numbers_(numbers), source_(source), use_(use), free_marks_(numbers) {}
  /// Waits on the host for what the device still does with freed blocks. Memory that cannot be
  /// waited for does not go back to the source, with a warning. REQUIRES: every block was freed.
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Memory that the stream may use at once, at a multiple of 512, with arbitrary contents.
  /// REQUIRES: 0 < bytes <= kBlockBytesMax, and the set of one stream, as StreamNumbers gives it.
  /// Returns the source's Status when there is no free block and the source has no segment left.
  Result<CUdeviceptr> allocate(uint64_t bytes, StreamSet stream) TENCACHE_EXCLUDES(mutex_);
  /// The program is done with the block; work that it has queued may go on. Returns false when the
  /// address is in no segment of the pool. REQUIRES: otherwise allocate() returned it, and it is
  /// not freed yet.
  bool free(CUdeviceptr address) TENCACHE_EXCLUDES(mutex_);
  /// These streams use the block, too (record_stream): it is not reused before they have done what
  /// they were given until free(). Any address in the block will do. Returns false when the address
  /// is in no segment of the pool. REQUIRES: otherwise the block is not freed yet.
  bool note_use(CUdeviceptr address, StreamSet streams) TENCACHE_EXCLUDES(mutex_);

  /// The program's block that contains the address, if there is one.
  std::optional<FoundBlock> find(CUdeviceptr address) const TENCACHE_EXCLUDES(mutex_);

  /// Gives wholly free segments back to the source, idle ones first, then those that have been free
  /// longest, until `bytes` went back or none is left. Waits on the host for what the device still
  /// does with them, for one stream after another. Returns how many bytes went.
  uint64_t trim(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  /// Does the same with segments that the device is known to be done with; waits for nothing. A
  /// stream is marked only once a call has found its segment free, so a segment whose stream is
  /// busy then goes in a later call at the earliest.
  uint64_t trim_idle(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// Puts the pool back to a state that segments() gave: every block of the program is freed, and
  /// those of the state are the program's again. Segments that are newer stay, free. Waits on the
  /// host for the streams that use a block besides its owner. Changes nothing and returns why where
  /// a segment of the state is gone, or a stream cannot be waited for. REQUIRES: no other thread
  /// uses the pool meanwhile, and the caller orders what it does with the blocks after earlier work
  /// of the owner's stream.
  Result<RestoredBlocks> restore(const std::vector<SegmentView>& state) TENCACHE_EXCLUDES(mutex_);

  /// Bytes of the program's blocks, as rounded.
  uint64_t used_bytes() const TENCACHE_EXCLUDES(mutex_);
  /// Bytes of all segments, until the source has them back.
  uint64_t segment_bytes() const TENCACHE_EXCLUDES(mutex_);
  /// All segments with their blocks at one moment, ascending by address.
  std::vector<SegmentView> segments() const TENCACHE_EXCLUDES(mutex_);

 private:
  Block* take(uint64_t bytes, StreamSet stream) TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return take_counted(bytes, stream);
  }
  Block* take_counted(uint64_t bytes, StreamSet stream) TENCACHE_REQUIRES(mutex_);
  void count_taken(const Block& block, const BlockFigures& before) TENCACHE_REQUIRES(mutex_);
  void release_counted(Block* block) TENCACHE_REQUIRES(mutex_);
  void release(Block* block) TENCACHE_REQUIRES(mutex_);
  Result<const Block*> take_slow(uint64_t bytes, StreamSet stream) TENCACHE_EXCLUDES(mutex_);
  // The streams to wait for before a block is free, when `users` used it besides its owner.
  static StreamSet streams_to_wait_for(StreamSet owner, StreamSet users);
  bool poll(Patience patience = Patience::kForThreads) TENCACHE_EXCLUDES(mutex_);
  bool adopt(uint64_t bytes, StreamSet stream) TENCACHE_EXCLUDES(mutex_);
  void note_whole() TENCACHE_EXCLUDES(mutex_);
  StreamSet wait_for_owners(const std::vector<Block*>& claimed);
  uint64_t give_back(const std::vector<Block*>& claimed, StreamSet refused)
      TENCACHE_EXCLUDES(mutex_);
  Status wait_for(StreamSet streams);
  Result<StreamSet> users_before(const std::vector<SegmentView>& state) const
      TENCACHE_REQUIRES(mutex_);
  std::vector<CUdeviceptr> free_all() TENCACHE_REQUIRES(mutex_);
  void lay_out(const SegmentView& state, std::vector<CUdeviceptr>* allocated)
      TENCACHE_REQUIRES(mutex_);

  StreamNumbers& numbers_;
  SegmentSource& source_;
  ProgramUse& use_;
  StreamQuarantine<Block*> waiting_{"GPU memory", OnFailure::kKeep};
  FreeMarks free_marks_;  // of wholly free segments

  mutable Mutex mutex_;
  BlockTable table_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t leaving_bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;  // on their way to the source
};

}  // namespace tencache
