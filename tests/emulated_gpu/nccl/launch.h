// SPDX-License-Identifier: Apache-2.0
//
// Operations as tasks of streams. What a call or a group gives one stream is one task, which
// declares all device memory that its operations touch. Where it belongs to several communicators
// of one device they run side by side, since they may wait for each other. An error fails the
// context, because what the task should have written is not there. Any thread may call; tasks run
// on the streams' threads.
#pragma once

#include <memory>
#include <vector>

#include "communicator.h"

namespace emulated_gpu::nccl {

/// The operations of one communicator in one stream.
struct Batch {
  std::shared_ptr<Communicator> communicator;
  cudaStream_t stream = nullptr;
  std::vector<Operation> operations = {};
};

/// Queues them all in their streams.
ncclResult_t launch(std::vector<Batch> batches);

}  // namespace emulated_gpu::nccl
