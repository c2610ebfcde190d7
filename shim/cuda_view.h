// SPDX-License-Identifier: Apache-2.0
//
// CudaView: the memory of one GPU as PyTorch's statistics and snapshots show it. What is allocated
// counts wherever its bytes are, so with tensors in host memory more may be allocated than is
// reserved; a snapshot shows such a tensor as a segment of its own like any other.
//
// Peaks of what is allocated and of what is taken from the driver are exact. Those of what waits
// for other streams, of split blocks, and of the reserve by kind are the highest that a call of
// stats() has seen: the core keeps no books of these between calls.
//
// Threads: any.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "abi/tencache_gpu.h"

namespace tencache::shim {

class CudaView {
 public:
  using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;
  using SegmentInfo = c10::CachingDeviceAllocator::SegmentInfo;

  DeviceStats stats(const tencache_gpu* gpu);
  void reset_peaks(tencache_gpu* gpu);
  void reset_totals(tencache_gpu* gpu);

 private:
  // Figures of which only the present value is known.
  enum Gauge : uint8_t { kActive, kActiveBytes, kSplit, kSplitBytes, kSegments, kSegmentBytes };
  static constexpr size_t kGaugeCount = 6;
  using Kind = c10::CachingAllocator::StatType;
  static constexpr size_t kKindCount = static_cast<size_t>(Kind::NUM_TYPES);

  void set(c10::CachingAllocator::StatArray& stats, Gauge gauge, Kind kind, uint64_t current);

  std::mutex mutex_;
  std::array<std::array<int64_t, kKindCount>, kGaugeCount> seen_peaks_ = {};  // guarded by mutex_
};

/// The segments of the pool of that id, or all; `id_of` tells PyTorch's id of one of the core's.
std::vector<CudaView::SegmentInfo> cuda_segments(
    const tencache_gpu* gpu, c10::DeviceIndex device, const c10::MempoolId_t& only,
    const std::function<c10::MempoolId_t(uint64_t)>& id_of);

}  // namespace tencache::shim
