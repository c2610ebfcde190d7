// SPDX-License-Identifier: Apache-2.0
//
// CudaHeapView: what the program may ask about the memory of a CudaHeap: statistics, snapshots and
// the block at an address. Its walks take no part in allocation.
//
// Threads: any. The heap outlives its view, which owns nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "memory/cuda/cuda_heap.h"

namespace tencache {

/// What extents do with the GPU's memory. Extents may change while they are added up, so the
/// figures are of nearly one moment.
struct CudaHeapFigures {
  uint64_t cold_bytes = 0;    // of the program's extents, without a frame
  uint64_t cached_bytes = 0;  // of freed extents, which keep their frames for reuse
};

class CudaHeapView {
 public:
  explicit CudaHeapView(CudaHeap& heap) : heap_(heap) {}

  ProgramUses uses() const { return heap_.use_.read(); }
  /// What the heap has taken from the driver for all uses.
  FrameUses frames() const { return heap_.frames_.uses(); }
  /// Walks all extents and adds them up.
  CudaHeapFigures figures() const TENCACHE_EXCLUDES(heap_.mutex_);
  /// Resets the peaks of uses() and frames().
  void reset_peaks();
  /// Resets the totals of uses() and frames().
  void reset_totals();
  /// The allocation that contains the address, if there is one.
  std::optional<FoundBlock> find_block(const void* address) const;
  /// Segments, and extents as segments of one block. Extents that come or go meanwhile may be
  /// missing or outdated.
  std::vector<SegmentView> segments() const TENCACHE_EXCLUDES(heap_.mutex_);

 private:
  CudaHeap& heap_;
};

}  // namespace tencache
