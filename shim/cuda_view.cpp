// SPDX-License-Identifier: Apache-2.0
#include "cuda_view.h"

#include <algorithm>

namespace tencache::shim {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

Stat& of_kind(StatArray& stats, StatType kind) { return stats[static_cast<size_t>(kind)]; }

Stat converted(const tencache_gpu_count& count) {
  Stat stat;
  stat.current = static_cast<int64_t>(count.current);
  stat.peak = static_cast<int64_t>(count.peak);
  stat.allocated = static_cast<int64_t>(count.added);
  stat.freed = static_cast<int64_t>(count.removed);
  return stat;
}

void set_all(StatArray& stats, const tencache_gpu_count& all, const tencache_gpu_count& small,
             const tencache_gpu_count& large) {
  of_kind(stats, StatType::AGGREGATE) = converted(all);
  of_kind(stats, StatType::SMALL_POOL) = converted(small);
  of_kind(stats, StatType::LARGE_POOL) = converted(large);
}

struct Walk {
  c10::DeviceIndex device;
  const c10::MempoolId_t& only;
  const std::function<c10::MempoolId_t(uint64_t)>& id_of;
  std::vector<CudaView::SegmentInfo> segments;
};

void visit(void* context, const tencache_gpu_segment* seen) {
  auto& walk = *static_cast<Walk*>(context);
  const c10::MempoolId_t id = walk.id_of(seen->pool);
  if (walk.only != c10::MempoolId_t{} && walk.only != id) return;
  CudaView::SegmentInfo& segment = walk.segments.emplace_back();
  segment.device = walk.device;
  segment.address = seen->address;
  segment.total_size = seen->bytes;
  segment.stream = seen->stream;
  segment.is_large = seen->is_small == 0;
  segment.owner_private_pool_id = id;
  for (size_t index = 0; index < seen->block_count; ++index) {
    const tencache_gpu_block& block = seen->blocks[index];
    const bool is_allocated = block.state == TENCACHE_BLOCK_ALLOCATED;
    c10::CachingDeviceAllocator::BlockInfo& info = segment.blocks.emplace_back();
    info.size = block.bytes;
    info.requested_size = block.requested_bytes;
    info.allocated = is_allocated;
    info.active = block.state != TENCACHE_BLOCK_INACTIVE;
    segment.requested_size += block.requested_bytes;
    segment.allocated_size += is_allocated ? block.bytes : 0;
    segment.active_size += info.active ? block.bytes : 0;
  }
}

}  // namespace

// REQUIRES: mutex_ is held. Keeps what is counted already, as far as it is more.
void CudaView::set(StatArray& stats, Gauge gauge, Kind kind, uint64_t current) {
  Stat& stat = of_kind(stats, kind);
  int64_t& seen = seen_peaks_.at(gauge).at(static_cast<size_t>(kind));
  stat.current = static_cast<int64_t>(current);
  seen = std::max({seen, stat.current, stat.peak});
  stat.peak = seen;
}

CudaView::DeviceStats CudaView::stats(const tencache_gpu* gpu) {
  tencache_gpu_stats from;
  tencache_gpu_get_stats(gpu, &from);
  DeviceStats to;
  set_all(to.allocation, from.all.allocations, from.small.allocations, from.large.allocations);
  set_all(to.allocated_bytes, from.all.bytes, from.small.bytes, from.large.bytes);
  set_all(to.requested_bytes, from.all.requested_bytes, from.small.requested_bytes,
          from.large.requested_bytes);
  // What waits for other streams is active on top of what is allocated.
  to.active = to.allocation;
  to.active_bytes = to.allocated_bytes;
  of_kind(to.segment, Kind::AGGREGATE) = converted(from.device_allocations);
  of_kind(to.reserved_bytes, Kind::AGGREGATE) = converted(from.device_bytes);
  to.num_device_alloc = static_cast<int64_t>(from.device_allocations.added);
  to.num_device_free = static_cast<int64_t>(from.device_allocations.removed);
  to.max_split_size = -1;  // any block may be split, as where PyTorch has no limit

  const std::lock_guard lock(mutex_);
  const tencache_gpu_reserve& small = from.small_reserve;
  const tencache_gpu_reserve& large = from.large_reserve;
  tencache_gpu_reserve all = small;
  all.waiting_bytes += large.waiting_bytes;
  all.waiting_count += large.waiting_count;
  all.split_bytes += large.split_bytes;
  all.split_count += large.split_count;
  const auto set_kind = [&](Kind kind, const tencache_gpu_uses& uses,
                            const tencache_gpu_reserve& reserve) {
    set(to.active, kActive, kind, uses.allocations.current + reserve.waiting_count);
    set(to.active_bytes, kActiveBytes, kind, uses.bytes.current + reserve.waiting_bytes);
    set(to.inactive_split, kSplit, kind, reserve.split_count);
    set(to.inactive_split_bytes, kSplitBytes, kind, reserve.split_bytes);
  };
  set_kind(Kind::AGGREGATE, from.all, all);
  set_kind(Kind::SMALL_POOL, from.small, small);
  set_kind(Kind::LARGE_POOL, from.large, large);
  // Free frames serve large requests first.
  const uint64_t device_count = from.device_allocations.current;
  const uint64_t device_bytes = from.device_bytes.current;
  set(to.segment, kSegments, Kind::SMALL_POOL, std::min(device_count, small.reserved_count));
  set(to.segment, kSegments, Kind::LARGE_POOL,
      device_count - std::min(device_count, small.reserved_count));
  set(to.reserved_bytes, kSegmentBytes, Kind::SMALL_POOL,
      std::min(device_bytes, small.reserved_bytes));
  set(to.reserved_bytes, kSegmentBytes, Kind::LARGE_POOL,
      device_bytes - std::min(device_bytes, small.reserved_bytes));
  return to;
}

void CudaView::reset_peaks(tencache_gpu* gpu) {
  tencache_gpu_reset_peaks(gpu);
  const std::lock_guard lock(mutex_);
  seen_peaks_ = {};
}

void CudaView::reset_totals(tencache_gpu* gpu) { tencache_gpu_reset_totals(gpu); }

std::vector<CudaView::SegmentInfo> cuda_segments(
    const tencache_gpu* gpu, c10::DeviceIndex device, const c10::MempoolId_t& only,
    const std::function<c10::MempoolId_t(uint64_t)>& id_of) {
  Walk walk = {device, only, id_of, {}};
  tencache_gpu_walk(gpu, &visit, &walk);
  return std::move(walk.segments);
}

}  // namespace tencache::shim
