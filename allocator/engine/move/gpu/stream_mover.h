// SPDX-License-Identifier: Apache-2.0
//
// StreamMover: how the cuda backend moves extents between the GPU and host memory: copies on
// streams of its own, ordered on the device after the program's work and before it.
//
// An eviction of an extent E
//   1. claims E (it stays usable; a pin taken from now on wins) and takes a block of host memory,
//   2. marks the streams that have used E, unless that was done before and E was not used since:
//      when a plan ordered the eviction, or for one of those before it. A program that is far
//      ahead of the GPU may have queued much by now. On the stream of that direction, which waits
//      for the marks on the device, it hashes E and copies its bytes. Not when the block that E
//      still has from the last time is presumed to hold them,
//   3. waits, on the thread that evicts, until that is done, and seals E (pins wait): nobody has
//      pinned it since the claim, so no work that uses it was queued after the marks. It hashes E
//      again and compares, which finds what was written meanwhile without a gate, unless the
//      write was undone before the second hash,
//   4. unmaps the frame. E is cold; its room is free.
// A part of what is to leave goes through 1 and 2 while the part before it is in 3, so that the
// link does not run dry. What was ordered to leave and is still on its way is awaited before 1: its
// op, which comes after that, was queued when the order was given.
// A pin, a use or a differing hash at any point leaves E resident and nothing is lost. Hashing
// reads device memory alone and returns 16 bytes. Where there is no NVRTC to compile the kernel,
// nothing is presumed: every eviction copies, and the gate's word is the proof.
//
// A fetch claims E, takes a frame and maps it on the host, because the driver checks addresses when
// work is queued; it queues the copy, marks it, and lets the op's stream wait for the mark. No
// thread waits for the data, but for room it may: what an op names comes one by one then, each as
// soon as it finds room, so that both directions of the link are busy. Until the mark is reached E
// is Arriving: it is part of a flight, and any other stream that uses it waits for the flight's
// mark too. Whoever notices that the mark is reached settles E. Fetches that ops wait for have a
// stream of their own, so that they do not queue behind those ahead of use, of which only so many
// bytes are in flight at a time, and one is always queued behind another.
//
// Below host memory may be a disk (engine/move/gpu/host_spill.h): blocks of what is coldest are
// then demoted to slots when an eviction finds no room. What has a slot alone is read back into a
// block before its fetch takes a frame, on the thread that fetches: an op that needs it waits for
// the disk on the host, a fetch ahead of use keeps nobody waiting. The slot stays with the extent
// as a spare copy, as the block does, as long as nothing proves that other bytes leave.
//
// Where the machine reads a disk straight into a GPU (platform/cuda/direct_storage.h), what has a
// slot alone comes that way, and its hash is made on the GPU. What does not arrive, or not whole,
// comes by host memory like everything from then on.
//
// Blocks that could not be pinned are copied through a few pinned buffers
// (engine/move/gpu/staged_copies.h), which takes the thread that evicts or fetches along.
//
// Who copies, the GPU's copy engines or a kernel on a few of its multiprocessors
// (platform/cuda/copy_kernel.h), is measured at the beginning, for each direction.
//
// A GPU cannot read what is not mapped: should a copy fail, E stays cold, and an op that uses it
// faults on the device. It never reads wrong bytes.
//
// Threads: any. mutex_ is held for bookkeeping only, never across a call of the driver.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/stats.h"
#include "base/status.h"
#include "engine/move/gpu/host_spill.h"
#include "engine/move/gpu/staged_copies.h"
#include "engine/move/migration_permit.h"
#include "engine/move/mover.h"
#include "memory/cuda/cuda_heap.h"
#include "platform/cuda/copy_kernel.h"
#include "platform/cuda/copy_stream.h"
#include "platform/cuda/device_hasher.h"
#include "platform/cuda/direct_storage.h"
#include "platform/cuda/stream_mark.h"
#include "platform/cuda/stream_numbers.h"
#include "tier/disk_tier.h"
#include "tier/host_tier.h"
#include "tier/staging_ring.h"

namespace tencache {

/// What lies below a GPU.
struct TiersBelow {
  HostTier& host;
  // For blocks that are not pinned; null: left to the driver. One for each direction: what comes
  // back must not wait for what leaves, which waits for the program's work.
  StagingRing* staging_out = nullptr;
  StagingRing* staging_in = nullptr;
  DiskTier* disk = nullptr;         // null: nothing goes further down
  DirectStorage* direct = nullptr;  // reads the disk's file; null: host memory is on the way
};

/// What runs on the GPU for us. Each may be null.
struct DeviceKernels {
  DeviceHasher* hasher = nullptr;
  const CopyKernel* copy = nullptr;
};

class StreamMover final : public Mover {
 public:
  /// All of them outlive the migrations.
  static Result<std::unique_ptr<StreamMover>> create(const Gpu& gpu, StreamMarks& marks,
                                                     CudaHeap& heap, const TiersBelow& below,
                                                     const DeviceKernels& kernels, Stats& stats);
  /// Waits for the copies under way. REQUIRES: no thread uses the migrations any more.
  ~StreamMover() override;

  /// From now on a thread keeps so much of the host's budget free, where there is a disk below it.
  /// Once at most.
  void keep_host_free(uint64_t headroom_bytes);

  /// Copies so many bytes to the host and back, as far as the budget has room for them, so that the
  /// first plan knows the link, by the copy engines and by the kernel: the faster one is used from
  /// then on. Waits for it; the driver has the memory again afterwards. REQUIRES: nothing is
  /// migrated yet, and nothing is cached that is to stay.
  Status measure_link(uint64_t bytes);

  EvictionResult evict(std::span<Extent* const> extents) override;
  void evict_requested(std::span<const MoveRequest> requests, const OnEvicted& on_evicted) override;
  std::shared_ptr<const QueuedWork> queued_work(std::span<const MoveRequest> requests) override;
  uint64_t bytes_at_once() const override;
  void wait_while_ahead(StreamSet streams, const std::function<bool()>& is_worth_it) override;
  /// Where the driver refuses, the extent stays cold and a warning says so.
  LateFetches fetch(std::span<Extent* const> extents, StreamSet streams) override;
  uint64_t prefetch(RequestSource& requests) override;
  void set_next_uses(const NextUses* next_uses) override;
  void describe_below(Machine* machine) const override;
  void settle(bool may_wait) override TENCACHE_EXCLUDES(mutex_);

 private:
  /// A moment in the streams that had used what was to leave then: all that they had been given.
  struct Moment final : QueuedWork {
    uint64_t at = 0;
    StreamSet streams = kNoStreams;
    std::vector<StreamMark> marks;
    bool covers(const Extent& extent, StreamSet users) const {
      return extent.last_use_at.load(std::memory_order_relaxed) <= at &&
             (users & ~streams) == kNoStreams;
    }
  };
  using MomentPtr = std::shared_ptr<const Moment>;
  struct Eviction {
    CudaExtent* extent = nullptr;
    uint64_t claimed_at = 0;
    bool needs_copy = true;
    std::optional<PendingHash> before = std::nullopt;  // of what is copied
    std::optional<PendingHash> after = std::nullopt;   // of what is there when it is sealed
    StreamMark done = {};                              // with the users, the copy, the last hash
    MomentPtr users_done = {};                         // covers every use; null: is not known
  };
  /// What is moved at a time.
  struct EvictionPart {
    std::vector<Eviction> clean;  // presumed so: no copy
    std::vector<Eviction> dirty;
    bool is_empty() const { return clean.empty() && dirty.empty(); }
  };
  /// One try at each of some extents.
  struct EvictionRun {
    EvictionRun(ForkLatch& gate, const OnEvicted& told, bool puts_off)
        : permit(gate), on_evicted(told), may_put_off(puts_off) {}
    void tell() {
      if (result.count > 0 || !result.failure.is_ok()) on_evicted(std::exchange(result, {}));
    }
    MigrationPermit permit;
    const OnEvicted& on_evicted;
    const bool may_put_off;          // what finds no host memory
    std::vector<MoveRequest> again;  // what was put off, and what turned out to need a copy
    EvictionResult result = {};      // what is not told yet
  };
  /// Extents whose bytes are on their way, with one mark for all of them.
  struct Flight {
    std::vector<CudaExtent*> extents;
    StreamMark mark;
    StreamSet stream = kNoStreams;  // that brings them
  };
  using FlightPtr = std::shared_ptr<const Flight>;

  /// Of one copy of the same bytes each way.
  struct LinkTimes {
    uint64_t out_ns = 0;
    uint64_t in_ns = 0;
  };

  StreamMover(CudaHeap& heap, const TiersBelow& below, const DeviceKernels& kernels, Stats& stats);

  /// What the link moves in so many seconds.
  uint64_t bytes_in(double link_s) const;
  Result<LinkTimes> time_copies(CUdeviceptr address, const HostBlock& block);
  Status choose_copies(CUdeviceptr address, const HostBlock& block);

  // Phases of an eviction.
  void evict_in_parts(std::span<const MoveRequest> requests, uint64_t part_bytes,
                      const OnEvicted& on_evicted);
  void evict_once(std::span<const MoveRequest> requests, uint64_t part_bytes, EvictionRun* run);
  void finish(EvictionPart part, EvictionRun* run);
  void wait_until_done(std::vector<Eviction>& evictions, EvictionRun* run);
  MomentPtr mark_users(std::span<const MoveRequest> requests) TENCACHE_EXCLUDES(mutex_);
  static const Extent* first_arriving(std::span<const MoveRequest> requests);
  void await_arrival(std::span<const MoveRequest> requests) TENCACHE_EXCLUDES(mutex_);
  EvictionPart claim(std::span<const MoveRequest> requests);
  MomentPtr moment_after_uses(const MoveRequest& request) TENCACHE_EXCLUDES(mutex_);
  bool can_be_queued_at_once(const std::vector<Eviction>& evictions);
  void take_blocks(std::vector<Eviction>& evictions, EvictionRun* run);
  void try_again(const Eviction& eviction, EvictionRun* run);
  Status ensure_block(CudaExtent* extent);
  void queue(EvictionPart& part, EvictionRun* run);
  void queue_copies(std::vector<Eviction>& evictions, EvictionRun* run);
  Status queue_copy(Eviction& eviction);
  void let_wait_for_users(CopyStream& stream, std::vector<Eviction>& evictions, EvictionRun* run);
  Status let_wait(CopyStream& stream, StreamSet users);
  Status let_wait(CopyStream& stream, const std::vector<Eviction>& evictions);
  void prove_and_leave(std::vector<Eviction>& evictions, EvictionRun* run);
  void seal(std::vector<Eviction>& evictions);
  void hash_sealed(std::vector<Eviction>& evictions, EvictionRun* run);
  Status queue_proof(Eviction& eviction);
  bool is_proved(const Eviction& eviction) const;
  void leave(const Eviction& eviction, EvictionRun* run);
  void abandon(const Eviction& eviction);
  void fail(const Eviction& eviction, const Status& failure, EvictionRun* run);

  // Host memory, and the disk below it.
  Result<HostBlock> take_block(uint64_t bytes);
  Result<HostBlock> take_block_for_op(uint64_t bytes);
  HostSpill::Outcome make_host_room(uint64_t bytes);
  Status copy_out(const HostBlock& block, CUdeviceptr device);
  /// `staged` is the batch's, and made when it is needed.
  Status queue_copy_in(const HostBlock& block, CUdeviceptr device, CopyStream& stream,
                       std::optional<StagedCopies>* staged);
  std::vector<CudaExtent*> read_back(std::vector<CudaExtent*>& extents, bool is_ahead,
                                     std::vector<CudaExtent*>* later);

  // Phases of a fetch.
  void fetch(std::span<Extent* const> extents, StreamSet streams, int tries, LateFetches* late);
  std::vector<CudaExtent*> bring_as_room_comes(std::span<CudaExtent* const> claimed);
  size_t take_room(std::span<CudaExtent* const> extents, bool one_by_one);
  static bool claim_when_demoted(Extent* extent);
  void bring_ahead(std::span<CudaExtent* const> extents);
  std::vector<CudaExtent*> bring(std::vector<CudaExtent*> extents, CopyStream& stream,
                                 bool is_ahead, std::vector<CudaExtent*>* later);
  std::vector<CudaExtent*> bring_directly(std::vector<CudaExtent*>& extents, CopyStream& stream,
                                          bool is_ahead);
  Status read_directly(const CudaExtent& extent, CopyStream& stream);
  void take_away_frames(std::span<CudaExtent* const> extents);
  std::vector<CudaExtent*> map_frames(std::vector<CudaExtent*>& extents, bool is_ahead);
  Status copy_in(std::span<CudaExtent* const> extents, CopyStream& stream, StreamMark* mark);
  void take_off(const std::vector<CudaExtent*>& extents, StreamMark mark, StreamSet stream,
                bool is_ahead) TENCACHE_EXCLUDES(mutex_);
  void leave_cold(CudaExtent* extent, bool is_ahead, const Status& reason);
  bool await_bytes(CudaExtent* extent, StreamSet streams, LateFetches* late, bool* has_landed);
  std::optional<bool> join(CudaExtent* extent, StreamSet streams) TENCACHE_EXCLUDES(mutex_);
  void hold_back(StreamSet streams, const Flight& flight);
  void land(const Flight& flight);
  void wait_for_oldest() TENCACHE_EXCLUDES(mutex_);

  CudaHeap& heap_;
  HostTier& host_;
  StagingRing* const staging_out_;
  StagingRing* const staging_in_;
  DeviceHasher* const hasher_;
  const CopyKernel* const copy_kernel_;
  // Null: the copy engines do it. Constant once the link is measured.
  const CopyKernel* kernel_out_ = nullptr;
  const CopyKernel* kernel_in_ = nullptr;
  const std::unique_ptr<HostSpill> spill_;  // null where there is no disk
  std::atomic<DirectStorage*> direct_;      // null from the first failure on
  std::unique_ptr<CopyStream> out_;
  StreamSet out_number_ = kNoStreams;
  std::unique_ptr<CopyStream> proof_;  // hashes that pins wait for do not queue behind copies
  std::unique_ptr<CopyStream> in_on_demand_;
  std::unique_ptr<CopyStream> in_ahead_;
  std::atomic<bool> warned_failure_{false};
  std::atomic<bool> warned_left_cold_{false};
  std::atomic<bool> is_gathering_{false};  // a thread has room for a part of what its op names

  Mutex mutex_;
  std::deque<FlightPtr> flights_ TENCACHE_GUARDED_BY(mutex_);  // began first, first
  std::unordered_map<const Extent*, FlightPtr> flight_of_ TENCACHE_GUARDED_BY(mutex_);
  std::deque<MomentPtr> moments_ TENCACHE_GUARDED_BY(mutex_);  // the last ones, oldest first
};

}  // namespace tencache
