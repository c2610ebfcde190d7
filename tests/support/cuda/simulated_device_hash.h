// SPDX-License-Identifier: Apache-2.0
//
// The kernel that hashes, for the simulated driver. Its values are those of the text that NVRTC
// compiles (platform/cuda/device_hash_kernel.h). Where the processor has AVX2 it makes them several
// times as fast, since programs on the emulated GPU hash all that they evict; elsewhere it runs
// that very text. Any thread.
#pragma once

#include "platform/cuda/device_hash.h"
#include "support/cuda/simulated_driver.h"

namespace tencache {

/// `reads_may_race`: as in SimulatedDriverConfig.
void add_hash_kernel(SimulatedDriver& driver, bool reads_may_race = false);

/// What run_hash_block() does.
void run_hash_block_fast(const HashJob& job, unsigned block, unsigned blocks);

}  // namespace tencache
