// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the emulation: each has a name and a handle for cuLaunchKernel, and is launched
// with a task (emulated_gpu.h), whose callable the stream's thread runs once it has declared the
// ranges of the task to the device's memory. A range that is not mapped then fails the context with
// CUDA_ERROR_ILLEGAL_ADDRESS, and the kernel's name and the range stand on stderr.
//
// A kernel takes the time that kernel_durations.h says. A stream holds kTasksMax tasks at most; the
// next launch waits for room, as on a real GPU. Without a bound a program that never waits fills
// the host's memory with tasks. Handles live for ever. Any thread but those of streams.
#pragma once

#include "emulated_gpu.h"
#include "support/cuda/simulated_driver.h"

namespace tencache {

inline constexpr size_t kTasksMax = 1024;

CUfunction emulated_function(const char* name);
/// Null where the handle is no kernel of the emulation.
const char* name_of_emulated(CUfunction function);

/// Queues the task of the block, which is the driver's from then on; the caller's where it fails.
/// REQUIRES: a current context.
CUresult launch_task(SimulatedDriver& driver, const EmulatedParameters& parameters,
                     CUstream stream);

}  // namespace tencache
