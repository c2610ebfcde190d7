// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the emulation. Each has a name and a handle for cuLaunchKernel, and is launched
// with a task (emulated_gpu.h). The stream's thread declares the ranges of the task to the device's
// memory and then runs the callable. A range that is not mapped fails the context with
// CUDA_ERROR_ILLEGAL_ADDRESS and prints the kernel's name and the range on stderr.
//
// kernel_durations.h says how long a kernel takes. A graph that captured a task runs it once a
// launch. Handles live for ever. Threads: any but those of streams.
#pragma once

#include "emulated_gpu.h"
#include "support/cuda/simulated_driver.h"

namespace tencache {

CUfunction emulated_function(const char* name);
/// Null for a handle that is no kernel of the emulation.
const char* name_of_emulated(CUfunction function);

/// Queues the task of the block. The driver owns the task from then on. If this fails, the caller
/// still owns it.
CUresult launch_task(SimulatedDriver& driver, const EmulatedParameters& parameters,
                     CUstream stream);

}  // namespace tencache
