// SPDX-License-Identifier: Apache-2.0
//
// Groups of calls: between ncclGroupStart and the matching ncclGroupEnd nothing is done; then
// everything is done together. Communicators that are to be made wait for each other, so each gets
// a thread. Operations become one task for each stream. A call outside of a group is a group
// of its own. The first error of a call within the group becomes that of its end, and nothing is
// launched. A group belongs to its thread.
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
/// Stores an error of a call for the group's end; returns it.
ncclResult_t note_in_group(ncclResult_t result);

}  // namespace emulated_gpu::nccl
