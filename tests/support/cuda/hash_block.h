// SPDX-License-Identifier: Apache-2.0
//
// The work of the hash kernel on the host, by the very text that NVRTC compiles. Threads: any.
#pragma once

#include "platform/cuda/device_hash.h"

namespace tencache {

/// Does the kernel's work for one block, lane after lane between its barriers.
inline void run_hash_block(const HashJob& job, unsigned block, unsigned blocks) {
  HashSums lanes[kHashLanes];
  for (unsigned lane = 0; lane < kHashLanes; ++lane)
    lanes[lane] = sum_lane(job, block, blocks, lane);
  for (unsigned half = kHashLanes / 2; half > 0; half /= 2) {
    for (unsigned lane = 0; lane < kHashLanes; ++lane) fold_lanes(lanes, lane, half);
  }
  job.sums[block] = lanes[0];
}

}  // namespace tencache
