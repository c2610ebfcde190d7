// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/cuda_heap.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/stats.h"
#include "base/units.h"
#include "platform/cuda/driver_use.h"

namespace tencache {
namespace {

// One block that stays keeps its whole segment, and each stream has segments of its own. So a large
// segment takes at most this share of the budget, but always holds two of the smallest large
// blocks.
constexpr uint64_t kLargeSegmentsPerBudget = 64;
constexpr uint64_t kLargeSegmentBytesMin = 4 * kMiB;
// When the GPU refuses memory, other programs are taken to have this share of the budget more: more
// where more is missing, and only what is missing where so much cannot be evicted.
constexpr uint64_t kOthersStepsPerBudget = 64;

bool is_out_of_memory(const Result<Frame>& frame) {
  return !frame.is_ok() && frame.status().code() == StatusCode::kOutOfMemory;
}

// The part of an extent behind the program's block: one free block, or none.
SplitChange rest_of(uint64_t bytes) {
  return {static_cast<int64_t>(bytes), bytes > 0 ? int64_t{1} : int64_t{0}};
}

Result<Allocation> as_allocation(const Result<CUdeviceptr>& block) {
  if (!block.is_ok()) return block.status();
  return Allocation{reinterpret_cast<void*>(block.value()), nullptr};
}

// The granularity of extents. Each has at least one handle, and the table has one entry for each
// granule.
uint64_t granularity_of(const Gpu& gpu) {
  return std::max(gpu.facts().granularity_bytes, kGranuleBytes);
}

HeapConfig for_gpu(HeapConfig config, const Gpu& gpu) {
  config.extent_min_bytes =
      std::clamp(config.extent_min_bytes, granularity_of(gpu), kBlockBytesMax);
  return config;
}

}  // namespace

CudaHeap::CudaHeap(const HeapConfig& config, const Gpu& gpu, DeviceArena& arena, FramePool& frames,
                   StreamNumbers& streams, HostTier* host, DiskTier* disk, ExtentTable& table,
                   Budget& budget, Stats& stats)
    : Heap(for_gpu(config, gpu), kSlackShare, table, budget, stats),
      granularity_(granularity_of(gpu)),
      total_bytes_(gpu.facts().total_bytes),
      arena_(arena),
      frames_(frames),
      streams_(streams),
      copies_(host, disk),
      free_marks_(streams),
      pool_(reinterpret_cast<char*>(arena.base()), arena.bytes()) {
  SegmentSource& source = *this;
  small_blocks_.emplace(streams, source, use_);
  private_pools_.emplace(streams, source, use_);
}

CudaHeap::~CudaHeap() {
  drop_cached(~uint64_t{0});
  private_pools_.reset();
  small_blocks_.reset();
  for (const ListedExtent& listed : extents()) {
    CudaExtent* extent = of_cuda(listed.extent);
    if (extent->state() == ExtentState::kVacant) continue;
    copies_.release(extent);
    if (extent->frame.bytes == 0) continue;
    std::vector<StreamMark> marks;
    bool is_idle = streams_.mark_all(extent->used_by.load(), &marks).is_ok();
    for (const StreamMark& mark : marks) is_idle &= mark.wait().is_ok();
    // Memory that the device may still use stays mapped, and is lost with the context.
    if (!is_idle || !take_away_frame(extent).is_ok()) frames_.write_off(extent->frame);
  }
  for (const auto& [address, frame] : segments_) frames_.write_off(frame);
}

Result<Allocation> CudaHeap::allocate(uint64_t bytes, StreamSet stream) {
  TENCACHE_DCHECK(bytes > 0);
  if (is_passive()) return driver_use_status();
  if (is_in_debt()) [[unlikely]] {
    TENCACHE_RETURN_IF_ERROR(pay_debt(bytes));
  }
  if (waiting_.is_turn()) [[unlikely]] {
    poll_waiting(Patience::kNone);
  }
  if (bytes < config_.extent_min_bytes) {
    return as_allocation(small_blocks_->allocate(bytes, stream));
  }
  const uint64_t rounded = round_up(bytes, granularity_);
  if (CudaExtent* extent = pop_cached({rounded, stream})) return hand_out(extent, bytes, stream);
  return allocate_slow(bytes, rounded, stream);
}

Result<Allocation> CudaHeap::allocate_private(uint64_t pool, uint64_t bytes, StreamSet stream) {
  if (is_passive()) return driver_use_status();
  if (is_in_debt()) [[unlikely]] {
    TENCACHE_RETURN_IF_ERROR(pay_debt(bytes));
  }
  const uint64_t bytes_max =
      std::min({config_.request_bytes_max, total_bytes_, arena_.bytes(), kBlockBytesMax});
  if (bytes > bytes_max) return never_fits(bytes, bytes_max);
  const PrivatePools::PoolPtr blocks = private_pools_->find(pool);
  TENCACHE_CHECK(blocks != nullptr, "there is no private pool %lu", pool);
  return as_allocation(blocks->allocate(bytes, stream));
}

Result<RestoredBlocks> CudaHeap::restore_private(uint64_t pool,
                                                 const std::vector<SegmentView>& state) {
  if (is_passive()) return driver_use_status();
  const PrivatePools::PoolPtr blocks = private_pools_->find(pool);
  if (blocks != nullptr) return blocks->restore(state);
  return Status(StatusCode::kFailedPrecondition, "The pool's memory was given back since.");
}

Allocation CudaHeap::hand_out(CudaExtent* extent, uint64_t requested_bytes, StreamSet stream) {
  release_spare_copy(extent);  // left by a migration that noticed the free only later
  extent->requested_bytes.store(requested_bytes, std::memory_order_relaxed);
  extent->id.store(next_id(), std::memory_order_release);
  extent->owner.store(stream, std::memory_order_relaxed);
  extent->used_by.store(stream, std::memory_order_relaxed);
  extent->is_recorded.store(false, std::memory_order_relaxed);
  extent->revive();
  count_allocated(*extent);
  return {extent->address, extent};
}

Result<Allocation> CudaHeap::allocate_slow(uint64_t requested_bytes, uint64_t bytes,
                                           StreamSet stream) {
  const uint64_t bytes_max =
      std::min(std::min(config_.request_bytes_max, total_bytes_), arena_.bytes());
  if (requested_bytes > bytes_max) return never_fits(requested_bytes, bytes_max);
  poll_waiting(Patience::kNone);
  if (CudaExtent* extent = pop_cached({bytes, stream})) {
    return hand_out(extent, requested_bytes, stream);
  }
  drop_cached_above_budget();
  if (CudaExtent* extent = cut_cached(requested_bytes, bytes, stream)) {
    if (budget_.needs_attention()) call_attention();
    count_allocated(*extent);
    return Allocation{extent->address, extent};
  }
  if (CudaExtent* extent = adopt_cached(bytes, stream)) {
    return hand_out(extent, requested_bytes, stream);
  }
  // The driver may take its time: while copies leave the GPU, a mapping takes 0.2 ms and more.
  std::optional<RoomWait> wait;
  if (is_armed()) wait.emplace(*this, stream);
  TENCACHE_RETURN_IF_ERROR(reserve(bytes, requested_bytes, stream));
  const Result<CudaExtent*> made = make_extent(requested_bytes, bytes, stream);
  if (!made.is_ok()) {
    budget_.release(bytes);
    return made.status();
  }
  if (budget_.needs_attention()) call_attention();
  count_allocated(*made.value());
  return Allocation{made.value()->address, made.value()};
}

void CudaHeap::count_allocated(const CudaExtent& extent) {
  const uint64_t requested_bytes = extent.requested_bytes.load(std::memory_order_relaxed);
  const uint64_t bytes = extent.block_bytes();
  use_.allocate(BlockTable::is_small(requested_bytes), bytes, requested_bytes,
                rest_of(extent.bytes - bytes));
  add(stats_.extents_allocated, 1);
  note_live();
}

// Counts an extent that the program frees; `others` may still use it, besides the stream that it
// was allocated on.
void CudaHeap::count_freed(uint64_t requested_bytes, uint64_t extent_bytes, StreamSet others) {
  const bool is_small = BlockTable::is_small(requested_bytes);
  const uint64_t bytes = BlockTable::block_bytes_of(requested_bytes, extent_bytes);
  if (others != kNoStreams) {
    use_.free(is_small, bytes);
    return;
  }
  const SplitChange rest = rest_of(extent_bytes - bytes);
  use_.free_unused(is_small, bytes, requested_bytes, {-rest.bytes, -rest.count});
}

// Counts a freed extent that no stream but the one it was allocated on may still use.
void CudaHeap::count_done(uint64_t requested_bytes, uint64_t extent_bytes) {
  const uint64_t bytes = BlockTable::block_bytes_of(requested_bytes, extent_bytes);
  const SplitChange rest = rest_of(extent_bytes - bytes);
  use_.complete(BlockTable::is_small(requested_bytes), bytes, requested_bytes,
                {-rest.bytes, -rest.count});
}

Result<CudaExtent*> CudaHeap::make_extent(uint64_t requested_bytes, uint64_t bytes,
                                          StreamSet stream) {
  Result<Frame> frame = allocate_frame(bytes, false, stream);
  if (!frame.is_ok()) return frame.status();
  const Result<char*> address = map_anywhere(frame.value());
  if (!address.is_ok()) {
    frames_.give_back(frame.value());
    return address.status();
  }
  return begin_extent(address.value(), std::move(frame).value(), requested_bytes, stream);
}

CudaExtent* CudaHeap::begin_extent(char* address, Frame frame, uint64_t requested_bytes,
                                   StreamSet stream) {
  const uint64_t bytes = frame.bytes;
  CudaExtent* extent = nullptr;
  {
    MutexLock lock(mutex_);
    extent = pool_.take(address, bytes);
  }
  extent->frame = std::move(frame);
  extent->owner.store(stream, std::memory_order_relaxed);
  extent->used_by.store(stream, std::memory_order_relaxed);
  extent->is_recorded.store(false, std::memory_order_relaxed);
  extent->id.store(next_id(), std::memory_order_release);
  extent->requested_bytes.store(requested_bytes, std::memory_order_relaxed);
  extent_count_.fetch_add(1, std::memory_order_relaxed);
  table_.set(extent->address, bytes, extent);
  tell(HeapEvent::kSegmentMade, extent->device_address(), bytes);
  extent->commit();
  return extent;
}

// New handles could take the heap beyond what is worth holding. Before that a thread waits for
// freed memory: what its own stream still uses, what other threads are about to give back, and, for
// a limited time, what other streams use.
Result<Frame> CudaHeap::allocate_frame(uint64_t bytes, bool is_small, StreamSet stream) {
  note_live();
  Result<Frame> frame = frame_without_wait(bytes, is_small);
  if (!is_out_of_memory(frame)) return frame;
  const RoomWait wait(*this, stream);
  while (destroy(take_oldest(frames_.missing(bytes), stream)) > 0 || await_leaving() ||
         await_idle(frames_.missing(bytes), stream)) {
    poll_waiting(Patience::kNone);
    frame = frame_without_wait(bytes, is_small);
    if (!is_out_of_memory(frame)) return frame;
  }
  return take_frame(bytes, true, is_small, stream);
}

// A program that repeats itself wants what is cached again, in the sizes that it has. If extents
// gave up their handles to others in each step, each step would map them anew. So new handles come
// first as long as there is room.
Result<Frame> CudaHeap::frame_without_wait(uint64_t bytes, bool is_small) {
  if (has_room_for_new_handles(bytes)) {
    Result<Frame> frame = frames_.take_within(bytes_worth_holding(), bytes, is_small);
    if (!is_out_of_memory(frame)) return frame;
  }
  gather_handles(bytes);
  return frames_.take_within(bytes_worth_holding(), bytes, is_small);
}

bool CudaHeap::has_room_for_new_handles(uint64_t bytes) const {
  return !is_scarce() && frames_.bytes() + frames_.missing(bytes) <= bytes_worth_holding();
}

// The GPU may have no memory although the budget has room, because others use it, too. The memory
// that they took counts as used from then on.
Result<Frame> CudaHeap::take_frame(uint64_t bytes, bool may_wait, bool is_small, StreamSet stream) {
  note_live();
  gather_handles(bytes);
  for (;;) {
    Result<Frame> frame = frames_.take_reserved(bytes, is_small, bytes_worth_holding());
    if (!is_out_of_memory(frame)) return frame;
    const uint64_t missing_bytes = frames_.missing(bytes);
    if (missing_bytes == 0 || drop_cached_of(missing_bytes, stream) > 0) continue;
    if (!may_wait) return frame;
    if (await_idle(missing_bytes, stream)) continue;
    // The heap evicts more than is missing, so that few rounds suffice where others have taken
    // much.
    uint64_t taken_bytes = std::max(missing_bytes, budget_.limit() / kOthersStepsPerBudget);
    if (!evict_more(taken_bytes)) {
      taken_bytes = missing_bytes;
      if (!evict_more(taken_bytes)) {
        const uint64_t still_missing = frames_.missing(bytes);
        if (still_missing == 0 || drop_cached_of(still_missing, stream) > 0) continue;
        if (drop_cached(still_missing) == 0) return frame;
        continue;
      }
    }
    others_bytes_.fetch_add(taken_bytes, std::memory_order_relaxed);
    if (!warned_others_.exchange(true)) {
      TENCACHE_LOG_WARNING(
          "other programs use the GPU's memory: the device budget of %s cannot be used in full, "
          "and tensors are spilled earlier; lower --device-memory to what is left for this program",
          format_bytes(budget_.limit()).c_str());
    }
  }
}

Result<char*> CudaHeap::map_anywhere(const Frame& frame) {
  char* address = nullptr;
  {
    MutexLock lock(mutex_);
    const std::optional<char*> taken = pool_.take_addresses(frame.bytes);
    if (!taken) {
      return Status(StatusCode::kUnavailable,
                    "The GPU's address arena of " + format_bytes(arena_.bytes()) + " is used up.");
    }
    address = *taken;
  }
  const FramePlace place{reinterpret_cast<CUdeviceptr>(address), frame};
  const Status status = arena_.map(std::span(&place, 1));
  if (status.is_ok()) return address;
  return_addresses(address, frame.bytes);
  return status;
}

void CudaHeap::return_addresses(const char* address, uint64_t bytes) {
  MutexLock lock(mutex_);
  pool_.give_back_addresses(address, bytes);
}

Status CudaHeap::take_away_frame(CudaExtent* extent) {
  TENCACHE_RETURN_IF_ERROR(arena_.unmap(extent->device_address(), extent->frame.bytes));
  frames_.give_back(extent->frame);
  extent->frame = {};
  return Status::ok();
}

Result<CUdeviceptr> CudaHeap::make(uint64_t bytes, bool is_small, StreamSet stream) {
  const uint64_t rounded = round_up(bytes, granularity_);
  poll_waiting(Patience::kNone);
  TENCACHE_RETURN_IF_ERROR(reserve(rounded, bytes, stream));
  Result<Frame> frame = allocate_frame(rounded, is_small, stream);
  const Result<char*> address =
      frame.is_ok() ? map_anywhere(frame.value()) : Result<char*>(frame.status());
  if (!address.is_ok()) {
    if (frame.is_ok()) frames_.give_back(frame.value());
    budget_.release(rounded);
    return address.status();
  }
  if (budget_.needs_attention()) call_attention();
  note_live();
  const auto device_address = reinterpret_cast<CUdeviceptr>(address.value());
  tell(HeapEvent::kSegmentMade, device_address, rounded);
  MutexLock lock(mutex_);
  segments_.emplace(device_address, std::move(frame).value());
  return device_address;
}

uint64_t CudaHeap::large_segment_bytes() const {
  const uint64_t share = budget_.limit() / kLargeSegmentsPerBudget;
  return std::clamp(share - share % kSegmentUnitBytes, kLargeSegmentBytesMin, kLargeSegmentBytes);
}

void CudaHeap::give_back(CUdeviceptr address) {
  Frame frame;
  {
    MutexLock lock(mutex_);
    frame = segments_.at(address);
  }
  const Status status = arena_.unmap(address, frame.bytes);
  if (!status.is_ok()) {
    // The context is broken. The segment is lost with it, and its room stays taken.
    TENCACHE_LOG_WARNING("%s", status.message().c_str());
    return;
  }
  {
    MutexLock lock(mutex_);
    segments_.erase(address);
  }
  tell(HeapEvent::kSegmentGone, address, frame.bytes);
  frames_.give_back(frame);
  return_addresses(reinterpret_cast<const char*>(address), frame.bytes);
  budget_.release(frame.bytes);
}

void CudaHeap::free(void* address) {
  if (address == nullptr || is_passive()) return;
  auto* extent = of_cuda(find(address));
  if (extent == nullptr) {
    const bool is_ours = free_block(reinterpret_cast<CUdeviceptr>(address));
    TENCACHE_CHECK(is_ours, "free of %p", address);
    return;
  }
  TENCACHE_CHECK(extent->address == address, "free of %p", address);
  const uint64_t requested_bytes = extent->requested_bytes.load(std::memory_order_relaxed);
  const uint64_t extent_bytes = extent->bytes;
  const bool is_shared = others_of(*extent) != kNoStreams;
  const Retired retired = extent->retire();
  if (retired == Retired::kCached) {
    shrink_now_and_then(cache(extent));
    return;
  }
  // The extent's bytes are not on the GPU, so no stream uses them.
  if (is_shared) note_completed(reinterpret_cast<CUdeviceptr>(address), requested_bytes);
  count_freed(requested_bytes, extent_bytes, kNoStreams);
  if (retired == Retired::kVacant) give_back_addresses(extent);
}

bool CudaHeap::free_block(CUdeviceptr address) {
  if (small_blocks_->free(address)) return true;
  const auto pools = private_pools_->all();
  return std::ranges::any_of(pools, [&](const auto& pool) { return pool.second->free(address); });
}

void CudaHeap::note_use(const void* address, StreamSet streams) {
  if (is_passive()) return;
  if (Extent* extent = find(address)) {
    extent->note_streams(streams);
    of_cuda(extent)->is_recorded.store(true, std::memory_order_relaxed);
    raise_to(extent->last_use_at, timestamp());  // earlier marks do not cover this use
    return;
  }
  const auto device_address = reinterpret_cast<CUdeviceptr>(address);
  bool is_ours = small_blocks_->note_use(device_address, streams);
  if (!is_ours) {
    const auto pools = private_pools_->all();
    is_ours = std::ranges::any_of(
        pools, [&](const auto& pool) { return pool.second->note_use(device_address, streams); });
  }
  TENCACHE_CHECK(is_ours, "record_stream of %p, which is not memory of this GPU's heap", address);
}

// Ends the life of an extent that is Vacant and busy, and has no frame any more. Its copy below
// goes with it, and its addresses are the caller's.
void CudaHeap::end_extent(CudaExtent* extent) {
  copies_.release(extent);
  table_.set(extent->address, extent->bytes, nullptr);
  tell(HeapEvent::kSegmentGone, extent->device_address(), extent->bytes);
  extent->become_vacant();
  extent_count_.fetch_sub(1, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  pool_.give_back(extent);
}

// Ends the extent's life as end_extent() does, and gives back its addresses, which nobody uses.
void CudaHeap::give_back_addresses(CudaExtent* extent) {
  const char* address = extent->address;
  const uint64_t bytes = extent->bytes;
  end_extent(extent);
  return_addresses(address, bytes);
}

std::vector<ListedExtent> CudaHeap::extents() const {
  MutexLock lock(mutex_);
  return pool_.list();
}

}  // namespace tencache
