// SPDX-License-Identifier: Apache-2.0
//
// How the emulated GPUs are set up, as tests/emulated_gpu/run says it in the environment. A value
// that cannot be read ends the process with a line on stderr that names the variable: whoever runs
// a program on GPUs that he did not ask for learns nothing. Any thread.
#pragma once

#include "support/cuda/simulated_driver_config.h"

namespace tencache {

/// EMULATED_GPU_COUNT; 1 where it is not set.
int device_count_from_environment();

/// The same, and EMULATED_GPU_MEMORY of each, EMULATED_GPU_LINK of bytes in a second each way and
/// EMULATED_GPU_KERNEL_BYTES_PER_S for tencache's own kernels, both without a limit where it is 0
/// or not set.
SimulatedDriverConfig config_from_environment();

}  // namespace tencache
