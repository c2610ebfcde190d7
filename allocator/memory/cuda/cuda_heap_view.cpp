// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/cuda_heap_view.h"

#include <algorithm>

#include "base/use_count.h"

namespace tencache {
namespace {

// Whether the extent is freed, but in no list: other streams may still use it, or a thread is just
// taking it.
bool is_waiting(const CudaExtent& extent) {
  return extent.state() == ExtentState::kCached && !extent.age_hook.linked;
}

bool has_frame(ExtentState state) {
  return state != ExtentState::kCold && state != ExtentState::kFetching;
}

}  // namespace

CudaHeapFigures CudaHeapView::figures() const {
  CudaHeapFigures figures;
  MutexLock lock(heap_.mutex_);
  for (const CudaExtent& extent : heap_.pool_.all()) {
    const ExtentState state = extent.state();
    if (state == ExtentState::kVacant || is_waiting(extent)) continue;
    if (state == ExtentState::kCached) {
      figures.cached_bytes += extent.bytes;
    } else if (!has_frame(state)) {
      figures.cold_bytes += extent.bytes;
    }
  }
  return figures;
}

void CudaHeapView::reset_peaks() {
  heap_.use_.reset(&UseCount::reset_peak);
  heap_.frames_.reset_peaks();
}

void CudaHeapView::reset_totals() {
  heap_.use_.reset(&UseCount::reset_totals);
  heap_.frames_.reset_totals();
}

std::optional<FoundBlock> CudaHeapView::find_block(const void* address) const {
  const auto device_address = reinterpret_cast<CUdeviceptr>(address);
  if (const Extent* extent = heap_.find(address)) {
    const ExtentState state = extent->state();
    if (state == ExtentState::kCached || state == ExtentState::kVacant) return std::nullopt;
    const auto begin = reinterpret_cast<CUdeviceptr>(extent->address);
    const auto& of_gpu = static_cast<const CudaExtent&>(*extent);
    const uint64_t block_bytes = of_gpu.block_bytes();
    if (device_address - begin >= block_bytes) return std::nullopt;
    return FoundBlock{begin,
                      extent->bytes,
                      begin,
                      block_bytes,
                      extent->requested_bytes.load(std::memory_order_relaxed),
                      of_gpu.owner.load(std::memory_order_relaxed),
                      CudaHeap::others_of(of_gpu) != kNoStreams,
                      0};
  }
  if (const auto block = heap_.small_blocks_->find(device_address)) return block;
  for (const auto& [number, pool] : heap_.private_pools_->all()) {
    if (auto block = pool->find(device_address)) {
      block->pool = number;
      return block;
    }
  }
  return std::nullopt;
}

std::vector<SegmentView> CudaHeapView::segments() const {
  std::vector<SegmentView> views = heap_.small_blocks_->segments();
  for (const auto& [number, pool] : heap_.private_pools_->all()) {
    for (SegmentView& view : pool->segments()) {
      view.pool = number;
      views.push_back(std::move(view));
    }
  }
  {
    MutexLock lock(heap_.mutex_);
    for (const CudaExtent& extent : heap_.pool_.all()) {
      const ExtentState state = extent.state();
      if (state == ExtentState::kVacant) continue;
      const bool is_active = state != ExtentState::kCached;
      const bool waits = is_waiting(extent);
      const bool is_used = is_active || waits;
      BlockView block;
      block.address = extent.device_address();
      block.bytes = is_used ? extent.block_bytes() : extent.bytes;
      block.requested_bytes = extent.requested_bytes.load(std::memory_order_relaxed);
      block.streams = extent.used_by.load(std::memory_order_relaxed);
      block.state = is_active ? BlockState::kActive
                    : waits   ? BlockState::kWaiting
                              : BlockState::kFree;
      SegmentView& view = views.emplace_back();
      view.address = block.address;
      view.bytes = extent.bytes;
      view.owner = extent.owner.load(std::memory_order_relaxed);
      view.is_resident = has_frame(state);
      view.blocks = {block};
      if (block.bytes == view.bytes) continue;
      view.blocks.push_back({block.address + block.bytes, view.bytes - block.bytes, 0, view.owner,
                             BlockState::kFree});
    }
  }
  std::ranges::sort(views, {}, &SegmentView::address);
  return views;
}

}  // namespace tencache
