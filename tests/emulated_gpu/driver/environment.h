// SPDX-License-Identifier: Apache-2.0
//
// The configuration of the emulated GPUs, which tests/emulated_gpu/run passes in the environment. A
// value that cannot be read ends the process with a line on stderr that names the variable, because
// a run on GPUs that nobody asked for would teach nothing. Threads: any.
#pragma once

#include "support/cuda/simulated_driver_config.h"

namespace tencache {

/// EMULATED_GPU_COUNT, or 1 where that is not set.
int device_count_from_environment();

/// The configuration of that many GPUs, with EMULATED_GPU_MEMORY for each GPU, EMULATED_GPU_LINK in
/// bytes a second each way, and EMULATED_GPU_KERNEL_BYTES_PER_S for tencache's own kernels. The
/// last two set no limit where they are 0 or not set. With EMULATED_GPU_REUSE_STREAMS=1 handles of
/// destroyed streams are used again; with EMULATED_GPU_PEERS=1 each device may use the memory of
/// each other one.
SimulatedDriverConfig config_from_environment();

}  // namespace tencache
