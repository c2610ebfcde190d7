// SPDX-License-Identifier: Apache-2.0
//
// The kernel that copies between device memory and pinned host memory. NVRTC compiles this very
// file for the GPU; the host's compiler compiles it for the simulated driver of the suites. So the
// file includes nothing.
//
// Each block takes every gridDim-th chunk. A lane has four loads of 16 bytes in flight: the link's
// latency is some microseconds, and the link moves no more in that time than is in flight.
#pragma once

#ifdef __CUDACC_RTC__
#define TENCACHE_COPY_ON_DEVICE __device__ __forceinline__
#define TENCACHE_COPY_UNROLLED _Pragma("unroll")
#define TENCACHE_COPY_MAY_ALIAS
#else
#define TENCACHE_COPY_ON_DEVICE inline
#define TENCACHE_COPY_UNROLLED
#define TENCACHE_COPY_MAY_ALIAS [[gnu::may_alias]]
#endif

namespace tencache {

using CopyCount = unsigned long long;

constexpr unsigned kCopyLanes = 256;  // threads of a block
constexpr unsigned kCopyLoads = 4;    // of 16 bytes, by one lane in one chunk
constexpr unsigned kCopyChunkWords = kCopyLanes * kCopyLoads;

struct alignas(16) TENCACHE_COPY_MAY_ALIAS CopyWord {
  CopyCount half[2];
};

/// The only parameter of the kernel.
struct CopyJob {
  const CopyWord* from;
  CopyWord* to;
  CopyCount words;
};

// Copies the share of one lane of block number `block` of `blocks`.
TENCACHE_COPY_ON_DEVICE void copy_lane(const CopyJob& job, unsigned block, unsigned blocks,
                                       unsigned lane) {
  const CopyCount step = CopyCount{blocks} * kCopyChunkWords;
  for (CopyCount first = CopyCount{block} * kCopyChunkWords + lane; first < job.words;
       first += step) {
    CopyWord words[kCopyLoads];
    TENCACHE_COPY_UNROLLED
    for (CopyCount load = 0; load < kCopyLoads; ++load) {
      const CopyCount index = first + load * kCopyLanes;
      if (index < job.words) words[load] = job.from[index];
    }
    TENCACHE_COPY_UNROLLED
    for (CopyCount load = 0; load < kCopyLoads; ++load) {
      const CopyCount index = first + load * kCopyLanes;
      if (index < job.words) job.to[index] = words[load];
    }
  }
}

}  // namespace tencache

#ifdef __CUDACC_RTC__

extern "C" __global__ void __launch_bounds__(tencache::kCopyLanes)
    tencache_device_copy(const __grid_constant__ tencache::CopyJob job) {
  tencache::copy_lane(job, blockIdx.x, gridDim.x, threadIdx.x);
}

#endif
