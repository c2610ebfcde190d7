// SPDX-License-Identifier: Apache-2.0
//
// CudaHeap's cuts: how freed memory serves another size where it is. Cached extents of one stream
// that are neighbours make a run. A request takes a stretch of a run, from one border between two
// handles to another, and what is left on either side stays cached. So frames are split and joined
// without a call of the driver, and the stream need not be waited for, because it is the one that
// freed them.
#include <utility>

#include "memory/cuda/cuda_heap.h"

namespace tencache {
namespace {

/// Where a handle begins or ends.
struct Border {
  CUdeviceptr address = 0;
  bool is_of_extent = false;
};

struct Stretch {
  CUdeviceptr begin = 0;
  int cuts = 3;  // extents that lose a part; more than any stretch has: there is none
};

// Keeps in `best` the stretch of exactly this size that cuts the fewest extents.
void look_in(const std::vector<Border>& run, uint64_t bytes, Stretch* best) {
  size_t end = 0;
  for (const Border& begin : run) {
    while (end < run.size() && run[end].address - begin.address < bytes) ++end;
    if (end == run.size()) return;
    if (run[end].address - begin.address != bytes) continue;
    const int cuts = (begin.is_of_extent ? 0 : 1) + (run[end].is_of_extent ? 0 : 1);
    if (cuts < best->cuts) *best = {begin.address, cuts};
  }
}

// The first handles, of together so many bytes, leave `handles`.
Frame split_off(std::vector<FrameHandle>* handles, uint64_t bytes) {
  Frame frame;
  auto handle = handles->begin();
  for (; frame.bytes < bytes; ++handle) {
    frame.handles.push_back(*handle);
    frame.bytes += handle->bytes;
  }
  TENCACHE_CHECK(frame.bytes == bytes);
  handles->erase(handles->begin(), handle);
  return frame;
}

}  // namespace

std::optional<CUdeviceptr> CudaHeap::find_stretch(uint64_t bytes, StreamSet home) const {
  Stretch best;
  std::vector<Border> run;
  for (const auto& [address, extent] : cached_by_address_) {
    const uint64_t word = extent->load();
    if (extent->home.load(std::memory_order_relaxed) != home || Extent::pins_of(word) > 0 ||
        (word & kFlagBusy) != 0) {
      continue;
    }
    CUdeviceptr border = extent->device_address();
    if (run.empty() || run.back().address != border) {
      look_in(run, bytes, &best);
      run.assign(1, {border, true});
    }
    for (const FrameHandle& handle : extent->frame.handles) {
      border += handle.bytes;
      run.push_back({border, false});
    }
    run.back().is_of_extent = true;
  }
  look_in(run, bytes, &best);
  if (best.cuts > 2) return std::nullopt;
  return best.begin;
}

// Takes the extents that have a part in the stretch. They are Vacant, busy and in no list then.
// None when another thread has just claimed one of them.
std::vector<CudaExtent*> CudaHeap::take_stretch(CUdeviceptr begin, uint64_t bytes) {
  std::vector<CudaExtent*> taken;
  auto next = std::prev(cached_by_address_.upper_bound(reinterpret_cast<const char*>(begin)));
  for (; next != cached_by_address_.end(); ++next) {
    CudaExtent* const extent = next->second;
    if (extent->device_address() >= begin + bytes) break;
    if (!extent->claim_for_trim()) {
      for (CudaExtent* claimed : taken) claimed->cancel_trim();
      return {};
    }
    taken.push_back(extent);
  }
  for (CudaExtent* extent : taken) unlink_cached(extent);
  return taken;
}

CudaExtent* CudaHeap::cut_cached(uint64_t requested_bytes, uint64_t bytes, StreamSet stream) {
  std::vector<CudaExtent*> taken;
  CUdeviceptr begin = 0;
  {
    MutexLock lock(mutex_);
    const std::optional<CUdeviceptr> found = find_stretch(bytes, stream);
    if (!found) return nullptr;
    begin = *found;
    taken = take_stretch(begin, bytes);
  }
  if (taken.empty()) return nullptr;
  const CUdeviceptr run_begin = taken.front()->device_address();
  const CUdeviceptr run_end = taken.back()->device_address() + taken.back()->bytes;
  const uint64_t first_number = taken.front()->free_number;
  const uint64_t last_number = taken.back()->free_number;
  std::vector<FrameHandle> handles;
  for (CudaExtent* extent : taken) {
    const Frame frame = std::exchange(extent->frame, Frame{});
    handles.insert(handles.end(), frame.handles.begin(), frame.handles.end());
    release_copy(extent);
    end_extent(extent);
  }
  const uint64_t left_bytes = begin - run_begin;
  const uint64_t right_bytes = run_end - begin - bytes;
  frames_.recount(taken.size(), 1 + (left_bytes > 0 ? 1 : 0) + (right_bytes > 0 ? 1 : 0));
  if (left_bytes > 0) {
    cache_rest(run_begin, split_off(&handles, left_bytes), stream, first_number);
  }
  CudaExtent* extent = begin_extent(reinterpret_cast<char*>(begin), split_off(&handles, bytes),
                                    requested_bytes, stream);
  cached_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  if (right_bytes > 0) {
    cache_rest(begin + bytes, split_off(&handles, right_bytes), stream, last_number);
  }
  return extent;
}

// `free_number` is that of the extent that it was a part of.
void CudaHeap::cache_rest(CUdeviceptr address, Frame frame, StreamSet home, uint64_t free_number) {
  const uint64_t bytes = frame.bytes;
  CudaExtent* extent =
      begin_extent(reinterpret_cast<char*>(address), std::move(frame), bytes, home);
  extent->free_number = free_number;
  (void)extent->retire();
  MutexLock lock(mutex_);
  link_cached(extent);
}

}  // namespace tencache
