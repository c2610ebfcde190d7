// SPDX-License-Identifier: Apache-2.0
//
// The hash kernel for the simulated driver. Its values are those of the text that NVRTC compiles
// (platform/cuda/device_hash_kernel.h). Programs on the emulated GPU hash all that they evict, so
// the kernel uses AVX2 where the processor has it, and is then several times as fast. Without AVX2
// it runs that very text. Threads: any.
#pragma once

#include "platform/cuda/device_hash.h"
#include "support/cuda/simulated_driver.h"

namespace tencache {

/// Adds the hash kernel to the driver's. `reads_may_race` means what it does in
/// SimulatedDriverConfig.
void add_hash_kernel(SimulatedDriver& driver, bool reads_may_race = false);

/// Does the same as run_hash_block() (support/cuda/hash_block.h).
void run_hash_block_fast(const HashJob& job, unsigned block, unsigned blocks);

}  // namespace tencache
