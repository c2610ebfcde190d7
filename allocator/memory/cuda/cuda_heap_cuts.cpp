// SPDX-License-Identifier: Apache-2.0
//
// CudaHeap's cuts: how freed memory serves another size where it is. Cached extents of one stream
// that are neighbours make a run. A request takes a stretch of a run, from one border between two
// handles to another, and what is left on either side stays cached. So frames are split and joined
// without a call of the driver, and the stream need not be waited for, because it is the one that
// freed the extents.
//
// Runs are listed by length (memory/cached_runs.h), and the tightest that has a stretch serves. A
// freed extent is listed only when a request finds no cached extent of the size that it wants, so a
// program whose sizes repeat lists nothing.
#include <algorithm>
#include <utility>

#include "memory/cuda/cuda_heap.h"

namespace tencache {
namespace {

// The search holds the heap's lock, so it is bounded: in a run that is far longer than the request,
// it looks only at the front.
constexpr size_t kRunsLookedAtMax = 8;
constexpr size_t kExtentsLookedAtMax = 64;

/// Where a handle begins or ends, and whether an extent does so there, too.
struct Border {
  CUdeviceptr address = 0;
  bool is_of_extent = false;
};

/// Where a stretch begins, and how many extents it cuts.
struct CutPlace {
  CUdeviceptr begin = 0;
  int cuts = 3;  // extents that lose a part, at most 2; 3: no stretch was found
};

// REQUIRES: the borders ascend, without gaps between them.
void keep_best(const std::vector<Border>& borders, uint64_t bytes, CutPlace* best) {
  size_t end = 0;
  for (const Border& begin : borders) {
    while (end < borders.size() && borders[end].address - begin.address < bytes) ++end;
    if (end == borders.size()) return;
    if (borders[end].address - begin.address != bytes) continue;
    const int cuts = (begin.is_of_extent ? 0 : 1) + (borders[end].is_of_extent ? 0 : 1);
    if (cuts < best->cuts) *best = {begin.address, cuts};
  }
}

void append_borders(const CudaExtent& extent, std::vector<Border>* borders) {
  CUdeviceptr border = extent.device_address();
  if (borders->empty()) borders->push_back({border, true});
  for (const FrameHandle& handle : extent.frame.handles) {
    border += handle.bytes;
    borders->push_back({border, false});
  }
  borders->back().is_of_extent = true;
}

// Takes the first handles out of `handles`: this many bytes in all.
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

// Invariant: the newest extents of the list by age are not in runs, and the rest are.
void CudaHeap::list_in_runs() {
  for (Extent* extent = cached_by_age_.front(); extent != nullptr && !extent->is_in_runs;
       extent = AgeList::next(extent)) {
    extent->is_in_runs = true;
    runs_of(*of_cuda(extent)).add(extent->address, extent->bytes);
  }
}

CachedRuns& CudaHeap::runs_of(const CudaExtent& extent) {
  const StreamSet owner = extent.owner.load(std::memory_order_relaxed);
  const char* const base = reinterpret_cast<const char*>(arena_.base());
  return cached_runs_.try_emplace(owner, base, arena_.bytes()).first->second;
}

std::optional<CUdeviceptr> CudaHeap::find_stretch(uint64_t bytes, StreamSet owner) {
  list_in_runs();
  const auto runs = cached_runs_.find(owner);
  if (runs == cached_runs_.end()) return std::nullopt;
  for (const std::span<const char> run : runs->second.tightest(bytes, kRunsLookedAtMax)) {
    if (const std::optional<CUdeviceptr> begin = find_in_run(run, bytes)) return begin;
  }
  return std::nullopt;
}

// The stretch of exactly this size that cuts the fewest extents.
std::optional<CUdeviceptr> CudaHeap::find_in_run(std::span<const char> run, uint64_t bytes) const {
  CutPlace best;
  std::vector<Border> borders;
  const char* const front_end = run.data() + std::min<uint64_t>(run.size(), 2 * bytes);
  auto next = cached_by_address_.find(run.data());
  for (size_t looks = 0; next != cached_by_address_.end(); ++looks, ++next) {
    const CudaExtent& extent = *next->second;
    if (extent.address >= run.data() + run.size()) break;
    if (looks >= kExtentsLookedAtMax && extent.address >= front_end) break;
    if (may_leave(extent)) {
      append_borders(extent, &borders);
    } else {
      keep_best(borders, bytes, &best);
      borders.clear();
    }
  }
  keep_best(borders, bytes, &best);
  if (best.cuts > 2) return std::nullopt;
  return best.begin;
}

// Takes the extents that have a part in the stretch. They are Vacant, busy and in no list then.
// Returns none when another thread has just claimed one of them.
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

// Caches a rest. `free_number` is that of the extent that the rest was a part of.
void CudaHeap::cache_rest(CUdeviceptr address, Frame frame, StreamSet owner, uint64_t free_number) {
  CudaExtent* extent = begin_extent(reinterpret_cast<char*>(address), std::move(frame), 0, owner);
  extent->free_number = free_number;
  (void)extent->retire();
  MutexLock lock(mutex_);
  link_cached(extent);
}

}  // namespace tencache
