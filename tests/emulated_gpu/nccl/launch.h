// SPDX-License-Identifier: Apache-2.0
//
// Operations as tasks of streams. All operations that a call or a group gives one stream are one
// task, which declares the device memory they touch. Operations of several communicators of one
// device run side by side in the task, since they may wait for each other. An error fails the
// context, because the task's output is missing. Any thread may call; tasks run on the streams'
// threads.
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

/// Queues all batches in their streams.
ncclResult_t launch(std::vector<Batch> batches);

}  // namespace emulated_gpu::nccl
