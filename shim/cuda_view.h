// SPDX-License-Identifier: Apache-2.0
//
// The memory of one GPU as PyTorch's statistics and snapshots show it. What is allocated counts
// wherever its bytes are, so with tensors in host memory more may be allocated than is reserved; a
// snapshot shows such a tensor as a segment of its own like any other.
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

/// What the core counts; the shim's own counts are not in it.
DeviceStats cuda_stats(const tencache_gpu* gpu);

/// The segments of the pool of that id, or all; `id_of` tells PyTorch's id of one of the core's.
std::vector<SegmentInfo> cuda_segments(const tencache_gpu* gpu, c10::DeviceIndex device,
                                       const c10::MempoolId_t& only,
                                       const std::function<c10::MempoolId_t(uint64_t)>& id_of);

}  // namespace tencache::shim
