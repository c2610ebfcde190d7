// SPDX-License-Identifier: Apache-2.0
//
// Groups: between ncclGroupStart and the ncclGroupEnd that matches it nothing is done, and then all
// of it together. Communicators that are to be made wait for each other, so each gets a thread;
// operations become one task for each communicator. A call outside of a group is one of its own.
// The first error of a call within the group is that of its end, and then nothing is launched. The
// group is its thread's own.
#pragma once

#include <functional>
#include <memory>

#include "communicator.h"

namespace emulated_gpu::nccl {

void start_group();
ncclResult_t end_group();
/// Makes a communicator: `meet` waits for other ranks, and calls no CUDA.
ncclResult_t meet_in_group(std::function<ncclResult_t()> meet);
ncclResult_t launch_in_group(std::shared_ptr<Communicator> communicator, cudaStream_t stream,
                             Operation operation);
/// Keeps an error of a call for the group's end; returns it.
ncclResult_t note_in_group(ncclResult_t result);

}  // namespace emulated_gpu::nccl
