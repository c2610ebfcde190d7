// SPDX-License-Identifier: Apache-2.0
//
// A communicator: one rank's part in a meeting, on one device. It queues operations as tasks of the
// caller's stream. The operations of one communicator run in the order in which they were queued,
// also in several streams: as in NCCL a stream waits, on the device, for the operations that
// another one was given before. While a stream captures a CUDA graph that is left to the graph's
// own order.
//
// An error of a task becomes the communicator's asynchronous error and fails the context, since
// what the task should have written is not there; an abort ends tasks without an error. Tasks own
// the communicator too, so that it may be destroyed while they are queued.
//
// Threads: any; tasks run on the streams' threads, one of a communicator at a time.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "meeting.h"
#include "operation.h"

namespace emulated_gpu::nccl {

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(const Place& place, int rank, int count, int device)
      : meeting_(place, rank, count), device_(device) {}

  int rank() const { return meeting_.rank(); }
  int count() const { return meeting_.count(); }
  int device() const { return device_; }
  Caller caller(const char* name) const { return {name, rank(), count()}; }

  /// Waits for the other ranks.
  ncclResult_t join() { return keep(meeting_.join()); }
  /// A communicator of the ranks that give the same color, in the order of their keys; none for a
  /// rank without a color. All ranks must call it.
  ncclResult_t split(int color, int key, std::shared_ptr<Communicator>* made);
  ncclResult_t launch(cudaStream_t stream, std::vector<Operation> operations);
  ncclResult_t asynchronous_error() const { return error_.load(); }

  void abort() { meeting_.abort(); }
  /// Gives CUDA's things back: nothing is launched any more.
  void close();

  ncclRedOp_t add_factor(ncclDataType_t type, const Factor& factor);
  bool remove_factor(ncclRedOp_t operation);
  /// What the operation means for values of the type; nothing where it has no meaning.
  std::optional<Reduction> find_reduction(ncclRedOp_t operation, ncclDataType_t type) const;

 private:
  struct Task;

  // Keeps an error.
  ncclResult_t keep(ncclResult_t result);
  void run(const std::vector<Operation>& operations);
  ncclResult_t wait_for_last_stream(cudaStream_t stream, bool is_capturing);
  ncclResult_t mark_last_stream(cudaStream_t stream, bool is_capturing);

  Meeting meeting_;
  const int device_;
  std::atomic<ncclResult_t> error_ = ncclSuccess;
  std::atomic<bool> is_running_ = false;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  cudaStream_t last_stream_ = nullptr;
  cudaEvent_t last_event_ = nullptr;  // after the last operation, in last_stream_
  std::map<int, Reduction> reductions_;
  int last_reduction_ = ncclNumOps;
};

}  // namespace emulated_gpu::nccl
