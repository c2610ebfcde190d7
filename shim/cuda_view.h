// SPDX-License-Identifier: Apache-2.0
//
// The memory of one GPU as PyTorch's statistics and snapshots show it. A tensor counts as allocated
// wherever its bytes are, so more may be allocated than is reserved. A snapshot shows a tensor in
// host memory as a segment of its own, like any other.
//
// Threads: any.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "abi/tencache_gpu.h"

namespace tencache::shim {

using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;
using SegmentInfo = c10::CachingDeviceAllocator::SegmentInfo;

/// A count of the core as a figure of PyTorch.
c10::CachingAllocator::Stat cuda_stat(const tencache_gpu_count& count);

/// The core's counts, without the shim's own.
DeviceStats cuda_stats(const tencache_gpu* gpu);

/// The segments of the pool with the id `only`, or all segments if that is {0, 0}. `id_of` maps the
/// core's number of a pool to PyTorch's id.
std::vector<SegmentInfo> cuda_segments(const tencache_gpu* gpu, c10::DeviceIndex device,
                                       const c10::MempoolId_t& only,
                                       const std::function<c10::MempoolId_t(uint64_t)>& id_of);

}  // namespace tencache::shim
