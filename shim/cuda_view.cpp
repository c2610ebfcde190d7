// SPDX-License-Identifier: Apache-2.0
#include "cuda_view.h"

#include <utility>

namespace tencache::shim {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

Stat& of_kind(StatArray& stats, StatType kind) { return stats[static_cast<size_t>(kind)]; }

struct Walk {
  c10::DeviceIndex device;
  const c10::MempoolId_t& only;
  const std::function<c10::MempoolId_t(uint64_t)>& id_of;
  std::vector<SegmentInfo> segments;
};

void visit(void* context, const tencache_gpu_segment* seen) {
  auto& walk = *static_cast<Walk*>(context);
  const c10::MempoolId_t id = walk.id_of(seen->pool);
  if (walk.only != c10::MempoolId_t{} && walk.only != id) return;
  SegmentInfo& segment = walk.segments.emplace_back();
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
    segment.requested_size += info.active ? block.requested_bytes : 0;
    segment.allocated_size += is_allocated ? block.bytes : 0;
    segment.active_size += info.active ? block.bytes : 0;
  }
}

}  // namespace

Stat cuda_stat(const tencache_gpu_count& count) {
  Stat stat;
  stat.current = static_cast<int64_t>(count.current);
  stat.peak = static_cast<int64_t>(count.peak);
  stat.allocated = static_cast<int64_t>(count.added);
  stat.freed = static_cast<int64_t>(count.removed);
  return stat;
}

DeviceStats cuda_stats(const tencache_gpu* gpu) {
  tencache_gpu_stats from;
  tencache_gpu_get_stats(gpu, &from);
  DeviceStats to;
  const auto set_all = [&](StatArray& stats, tencache_gpu_count tencache_gpu_uses::*count) {
    of_kind(stats, StatType::AGGREGATE) = cuda_stat(from.all.*count);
    of_kind(stats, StatType::SMALL_POOL) = cuda_stat(from.small.*count);
    of_kind(stats, StatType::LARGE_POOL) = cuda_stat(from.large.*count);
  };
  set_all(to.allocation, &tencache_gpu_uses::allocations);
  set_all(to.allocated_bytes, &tencache_gpu_uses::bytes);
  set_all(to.active, &tencache_gpu_uses::active_count);
  set_all(to.active_bytes, &tencache_gpu_uses::active_bytes);
  set_all(to.requested_bytes, &tencache_gpu_uses::requested_bytes);
  set_all(to.inactive_split, &tencache_gpu_uses::split_count);
  set_all(to.inactive_split_bytes, &tencache_gpu_uses::split_bytes);
  set_all(to.segment, &tencache_gpu_uses::device_count);
  set_all(to.reserved_bytes, &tencache_gpu_uses::device_bytes);
  to.num_device_alloc = static_cast<int64_t>(from.all.device_count.added);
  to.num_device_free = static_cast<int64_t>(from.all.device_count.removed);
  return to;
}

std::vector<SegmentInfo> cuda_segments(const tencache_gpu* gpu, c10::DeviceIndex device,
                                       const c10::MempoolId_t& only,
                                       const std::function<c10::MempoolId_t(uint64_t)>& id_of) {
  Walk walk = {device, only, id_of, {}};
  tencache_gpu_walk(gpu, &visit, &walk);
  return std::move(walk.segments);
}

}  // namespace tencache::shim
