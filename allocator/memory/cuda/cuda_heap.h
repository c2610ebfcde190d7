// SPDX-License-Identifier: Apache-2.0
//
// CudaHeap: the memory of one GPU. A request below the extent threshold comes from a pool of small
// blocks and is always resident. A larger one becomes an extent, whose address stays its own and
// whose frame has exactly its size.
//
// Queued work may still use memory that the program has freed. So a freed extent waits in a cache.
// The stream it was allocated on may have it again at once, because what that stream is given next
// runs later. Another stream takes it over by waiting, on the device, for a mark on the first. An
// extent that further streams have used waits until they have reached marks that were made at its
// free. A thread waits for the device only when the frame itself is wanted, for a request of
// another size or for an extent that comes back. Even then it waits only for the moment of the free
// (memory/cuda/free_marks.h).
//
// A request of another size takes a stretch of its stream's cached memory, where borders of handles
// allow it (memory/cuda/cuda_heap_cuts.cpp). Otherwise its frame is built from free handles and new
// ones. Live and freed memory together take no more than the program has lately had at once and a
// slack (memory/live_peak.h). At that limit, and where memory is scarce, cached extents that the
// device is done with give up their handles first, oldest first. Where new handles would go beyond
// the limit, the thread waits for freed memory instead. Memory that is too much once the peak is
// forgotten goes back to the driver.
//
// Invariants, besides those of memory/heap.h
//   1. A frame is mapped under an extent in every state but Vacant, Cold and Fetching. A sealed
//      extent loses its frame just before it becomes cold.
//   2. No stream but its owner has used a cached extent since the marks that the others had to
//      reach. An extent that still waits for them is Cached, too, and in waiting_.
//   3. Frames, including free ones and those of segments, never exceed the budget or, where more
//      than that is reserved, what is reserved.
//   4. Free and cached frames are never more than is worth keeping, as far as threads that allocate
//      can see to it. Threads that fetch do not wait for the sake of that, and may exceed it for a
//      while.
//
// Threads: any. mutex_ is held only for list and range bookkeeping, never across a call of the
// driver, a copy, or a wait for room.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "memory/cached_runs.h"
#include "memory/cuda/block_pool.h"
#include "memory/cuda/copies_below.h"
#include "memory/cuda/cuda_extent.h"
#include "memory/cuda/free_marks.h"
#include "memory/cuda/heap_observer.h"
#include "memory/cuda/private_pools.h"
#include "memory/cuda/program_use.h"
#include "memory/cuda/stream_quarantine.h"
#include "memory/extent_pool.h"
#include "memory/heap.h"
#include "memory/intrusive_list.h"
#include "memory/recycling_map.h"
#include "platform/cuda/device_arena.h"
#include "platform/cuda/frame_pool.h"
#include "platform/cuda/stream_numbers.h"
#include "tier/disk_tier.h"
#include "tier/host_tier.h"

namespace tencache {

class CudaHeapView;

class CudaHeap final : public Heap, private SegmentSource {
 public:
  /// One part in so many of the peak is kept beyond it (LivePeak). GPU memory is dear, and a handle
  /// that is freed soon serves another size.
  static constexpr uint64_t kSlackShare = 16;

  CudaHeap(const HeapConfig& config, const Gpu& gpu, DeviceArena& arena, FramePool& frames,
           StreamNumbers& streams, HostTier* host, DiskTier* disk, ExtentTable& table,
           Budget& budget, Stats& stats);
  /// Waits for the device. REQUIRES: nobody uses the heap any more.
  ~CudaHeap() override;

  /// Memory that the stream may use at once. `stream` is the set of one stream.
  Result<Allocation> allocate(uint64_t bytes, StreamSet stream);
  void free(void* address);
  /// These streams use the block, too (record_stream); any address inside it will do.
  void note_use(const void* address, StreamSet streams);

  std::vector<ListedExtent> extents() const override TENCACHE_EXCLUDES(mutex_);
  uint64_t small_bytes() const override {
    return small_blocks_->segment_bytes() + private_pools_->segment_bytes();
  }
  uint64_t drop_cached(uint64_t bytes) override TENCACHE_EXCLUDES(mutex_);
  uint64_t drop_idle_cached(uint64_t bytes) override TENCACHE_EXCLUDES(mutex_);
  uint64_t drop_cached_of(uint64_t bytes, StreamSet streams) override TENCACHE_EXCLUDES(mutex_);

  /// Memory of this private pool, which must exist, that the stream may use at once.
  Result<Allocation> allocate_private(uint64_t pool, uint64_t bytes, StreamSet stream);
  /// Puts this private pool back (BlockPool::restore()). Fails, too, if the pool is gone.
  Result<RestoredBlocks> restore_private(uint64_t pool, const std::vector<SegmentView>& state);
  PrivatePools& private_pools() { return *private_pools_; }
  /// Does what PrivatePools::drop() does, and gives at least as many bytes of free handles back to
  /// the driver. Returns whether the pool is gone.
  bool drop_private_pool(uint64_t number);
  uint64_t empty_cache() override;

  /// Tells the observer of what happens from now on. The observer outlives the heap.
  void observe(HeapObserver* observer) { observer_.store(observer, std::memory_order_release); }

  /// Sets the budget and gives back at once what is cached above it. The caller tells the engine.
  void set_limit(uint64_t bytes, bool is_bounded);

  /// Takes a frame, whose room must be reserved already, for work in this stream. Where others use
  /// the GPU's memory, waits for evictions if it may.
  Result<Frame> take_frame(uint64_t bytes, bool may_wait, bool is_small = false,
                           StreamSet stream = kNoStreams);
  FramePool& frame_pool() { return frames_; }
  /// Unmaps the frame under an extent; the frame is free then. REQUIRES: the device is done with
  /// it.
  Status take_away_frame(CudaExtent* extent);
  CopiesBelow& copies() { return copies_; }
  /// Gives back host memory of resident extents (copies that only save a copy later) until `bytes`
  /// went or none is left. Returns how many bytes went. A copy that is on disk, too, stays there as
  /// long as no op has announced a write.
  uint64_t drop_spare_copies(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  /// Gives back likewise the slots of extents that are resident, or cold with their bytes in host
  /// memory, too. Slots that a fork has frozen stay.
  uint64_t drop_spare_slots(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  /// Gives up what claim_cold() took. Ends the extent if it was freed meanwhile.
  void release_cold(CudaExtent* extent) TENCACHE_EXCLUDES(mutex_);

  DeviceArena& arena() { return arena_; }
  StreamNumbers& streams() { return streams_; }

 private:
  friend class CudaHeapView;  // reads what the program asks about
  friend struct HeapBooks;    // of the suites: walks over all of it
  using AgeList = IntrusiveList<Extent, &Extent::age_hook>;
  using SizeList = IntrusiveList<Extent, &Extent::size_hook>;
  using Key = std::pair<uint64_t, StreamSet>;  // bytes, owner

  uint64_t drop_idle_segments(uint64_t bytes) override TENCACHE_EXCLUDES(mutex_);
  bool is_cold_usable() const override { return false; }
  uint64_t device_bytes_max() const override { return total_bytes_; }
  bool may_extents_be_smaller() const override { return config_.extent_min_bytes > granularity_; }

  void tell(HeapEvent event, CUdeviceptr address, uint64_t bytes) {
    HeapObserver* const observer = observer_.load(std::memory_order_acquire);
    if (observer == nullptr) return;
    observer->note(observer->context, static_cast<int>(event), address, bytes);
  }

  // The methods of SegmentSource.
  Result<CUdeviceptr> make(uint64_t bytes, bool is_small, StreamSet stream) override
      TENCACHE_EXCLUDES(mutex_);
  uint64_t large_segment_bytes() const override;
  void give_back(CUdeviceptr address) override TENCACHE_EXCLUDES(mutex_);
  void note_completed(CUdeviceptr address, uint64_t requested_bytes) override {
    tell(HeapEvent::kFreeCompleted, address, requested_bytes);
  }

  Result<Allocation> allocate_slow(uint64_t requested_bytes, uint64_t bytes, StreamSet stream);
  Allocation hand_out(CudaExtent* extent, uint64_t requested_bytes, StreamSet stream);
  Result<CudaExtent*> make_extent(uint64_t requested_bytes, uint64_t bytes, StreamSet stream);
  CudaExtent* begin_extent(char* address, Frame frame, uint64_t requested_bytes, StreamSet stream)
      TENCACHE_EXCLUDES(mutex_);
  void end_extent(CudaExtent* extent) TENCACHE_EXCLUDES(mutex_);
  CudaExtent* pop_cached(Key key) TENCACHE_EXCLUDES(mutex_);
  CudaExtent* cut_cached(uint64_t requested_bytes, uint64_t bytes, StreamSet stream)
      TENCACHE_EXCLUDES(mutex_);
  void list_in_runs() TENCACHE_REQUIRES(mutex_);
  CachedRuns& runs_of(const CudaExtent& extent) TENCACHE_REQUIRES(mutex_);
  std::optional<CUdeviceptr> find_stretch(uint64_t bytes, StreamSet owner)
      TENCACHE_REQUIRES(mutex_);
  std::optional<CUdeviceptr> find_in_run(std::span<const char> run, uint64_t bytes) const
      TENCACHE_REQUIRES(mutex_);
  std::vector<CudaExtent*> take_stretch(CUdeviceptr begin, uint64_t bytes)
      TENCACHE_REQUIRES(mutex_);
  void cache_rest(CUdeviceptr address, Frame frame, StreamSet owner, uint64_t free_number)
      TENCACHE_EXCLUDES(mutex_);
  CudaExtent* adopt_cached(uint64_t bytes, StreamSet stream) TENCACHE_EXCLUDES(mutex_);

  void count_allocated(const CudaExtent& extent);
  uint64_t cache(CudaExtent* extent) TENCACHE_EXCLUDES(mutex_);
  void count_freed(uint64_t requested_bytes, uint64_t extent_bytes, StreamSet others);
  void count_done(uint64_t requested_bytes, uint64_t extent_bytes);
  void release_spare_copy(CudaExtent* extent);
  bool free_block(CUdeviceptr address);
  static StreamSet others_of(const CudaExtent& extent);
  static Key key_of(const CudaExtent& extent) {
    return {extent.bytes, extent.owner.load(std::memory_order_relaxed)};
  }
  using DropSpare = uint64_t (CudaHeap::*)(CudaExtent* extent);  // returns the bytes it dropped
  uint64_t drop_spares(uint64_t bytes, bool with_cold, DropSpare drop) TENCACHE_EXCLUDES(mutex_);
  std::vector<CudaExtent*> next_with_copy(bool with_cold, size_t* place) TENCACHE_EXCLUDES(mutex_);
  uint64_t drop_spare_copy(CudaExtent* extent);
  uint64_t drop_spare_slot(CudaExtent* extent) TENCACHE_EXCLUDES(mutex_);
  void link_cached(CudaExtent* extent) TENCACHE_REQUIRES(mutex_);
  void unlink_cached(CudaExtent* extent) TENCACHE_REQUIRES(mutex_);
  uint64_t cached_bytes_of(StreamSet owners) const TENCACHE_EXCLUDES(mutex_);
  bool poll_waiting(Patience patience) TENCACHE_EXCLUDES(mutex_);
  StreamSet oldest_owner(StreamSet tried) const TENCACHE_EXCLUDES(mutex_);
  std::vector<CudaExtent*> take_oldest(uint64_t bytes, StreamSet awaited,
                                       uint64_t handle_bytes_max = ~uint64_t{0})
      TENCACHE_EXCLUDES(mutex_);
  uint64_t destroy(const std::vector<CudaExtent*>& extents) TENCACHE_EXCLUDES(mutex_);

  /// How much live and freed memory together may take. Memory that waits for further streams cannot
  /// serve the program, so it must not take the place of memory that can.
  uint64_t bytes_worth_holding() const {
    return allowed_bytes() + waiting_bytes_.load(std::memory_order_relaxed);
  }
  bool is_scarce() const;
  bool has_room_for_new_handles(uint64_t bytes) const;
  uint64_t bytes_per_mark();
  Result<Frame> allocate_frame(uint64_t bytes, bool is_small, StreamSet stream);
  Result<Frame> frame_without_wait(uint64_t bytes, bool is_small);
  void gather_handles(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  bool has_cached() const TENCACHE_EXCLUDES(mutex_);
  bool await_leaving() TENCACHE_EXCLUDES(mutex_);
  bool await_idle(uint64_t bytes, StreamSet stream) TENCACHE_EXCLUDES(mutex_);
  std::map<StreamSet, FreeMarks::Line> lines_of_others(StreamSet stream) const
      TENCACHE_EXCLUDES(mutex_);
  static bool may_leave(const Extent& extent);
  void shrink_now_and_then(uint64_t free_number) TENCACHE_EXCLUDES(mutex_);

  Result<char*> map_anywhere(const Frame& frame) TENCACHE_EXCLUDES(mutex_);
  void return_addresses(const char* address, uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  void give_back_addresses(CudaExtent* extent) TENCACHE_EXCLUDES(mutex_);
  static CudaExtent* of_cuda(Extent* extent) { return static_cast<CudaExtent*>(extent); }

  // Constant after construction.
  const uint64_t granularity_;
  const uint64_t total_bytes_;  // of the GPU
  DeviceArena& arena_;
  FramePool& frames_;
  StreamNumbers& streams_;
  CopiesBelow copies_;

  FreeMarks free_marks_;
  StreamQuarantine<CudaExtent*> waiting_{"GPU memory", OnFailure::kEnd};
  std::atomic<uint64_t> waiting_bytes_{0};  // of extents in waiting_
  std::atomic<int64_t> frees_to_mark_{0};   // while a frame was wanted lately, frees get marks
  std::atomic<bool> warned_others_{false};
  std::atomic<HeapObserver*> observer_{nullptr};

  mutable Mutex mutex_;
  ExtentPool<CudaExtent> pool_ TENCACHE_GUARDED_BY(mutex_);
  AgeList cached_by_age_ TENCACHE_GUARDED_BY(mutex_);  // newest first
  RecyclingMap<Key, SizeList> cached_by_key_ TENCACHE_GUARDED_BY(mutex_);
  RecyclingMap<const char*, CudaExtent*> cached_by_address_ TENCACHE_GUARDED_BY(mutex_);
  std::map<StreamSet, CachedRuns> cached_runs_ TENCACHE_GUARDED_BY(mutex_);  // by owner
  std::unordered_map<CUdeviceptr, Frame> segments_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t leaving_count_ TENCACHE_GUARDED_BY(mutex_) = 0;  // cached extents that threads destroy
  uint64_t destroyed_count_ TENCACHE_GUARDED_BY(mutex_) = 0;
  CondVar has_left_;
  uint64_t stuck_count_ TENCACHE_GUARDED_BY(mutex_) = 0;  // of leaving_count_, waited for in vain
  // By owner: the last free that was over when a wait for the owner's stream was given up.
  std::map<StreamSet, uint64_t> stood_still_ TENCACHE_GUARDED_BY(mutex_);

  ProgramUse use_;
  // The destructor resets these two before any member is destroyed: their segments go back through
  // the members above.
  std::optional<BlockPool> small_blocks_;
  std::optional<PrivatePools> private_pools_;
};

}  // namespace tencache
