// SPDX-License-Identifier: Apache-2.0
//
// A communicator: one rank's part in a meeting, on one device. Its operations run in the order in
// which they were queued, also across streams: as in NCCL, a stream waits on the device for
// operations that were given to another stream before. While a stream captures a CUDA graph, the
// graph's own order applies instead.
//
// An error of an operation becomes the communicator's asynchronous error; an abort ends operations
// without one. Queued operations share the communicator, so it may be destroyed before they ran.
//
// Threads: any. Operations run on the streams' threads, those of one communicator one at a time.
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

class Communicator {
 public:
  Communicator(const Place& place, int rank, int count, int device)
      : meeting_(place, rank, count), device_(device) {}

  int rank() const { return meeting_.rank(); }
  int count() const { return meeting_.count(); }
  int device() const { return device_; }
  Caller caller(const char* name) const { return {name, rank(), count()}; }

  /// Waits for the other ranks.
  ncclResult_t join() { return keep(meeting_.join()); }
  /// Makes a communicator of the ranks that give the same color, in the order of their keys. A rank
  /// without a color gets none. All ranks must call this.
  ncclResult_t split(int color, int key, std::shared_ptr<Communicator>* made);
  /// Call enter_stream() before and mark_stream() after operations are queued in the stream, on the
  /// thread's current device.
  ncclResult_t enter_stream(cudaStream_t stream);
  ncclResult_t mark_stream(cudaStream_t stream);
  /// A stream's thread runs the operations by this when their turn has come.
  void run(const std::vector<Operation>& operations);
  ncclResult_t asynchronous_error() const { return error_.load(); }
  /// Whether there was an error. An abort is no failure.
  bool has_failed() const { return error_ != ncclSuccess && !meeting_.is_aborted(); }

  void abort() { meeting_.abort(); }
  /// Gives CUDA's objects back; nothing is launched afterwards.
  void close();

  ncclRedOp_t add_factor(ncclDataType_t type, const Factor& factor);
  bool remove_factor(ncclRedOp_t operation);
  /// The reduction that the operation means for values of the type, or none where the operation
  /// means nothing for them.
  std::optional<Reduction> find_reduction(ncclRedOp_t operation, ncclDataType_t type) const;

 private:
  // Stores the result if it is an error, and returns it.
  ncclResult_t keep(ncclResult_t result);

  Meeting meeting_;
  const int device_;
  std::atomic<ncclResult_t> error_ = ncclSuccess;
  std::atomic<bool> is_running_ = false;

  mutable std::mutex mutex_;
  // mutex_ guards all members below.
  cudaStream_t last_stream_ = nullptr;
  cudaEvent_t last_event_ = nullptr;  // after the last operation, in last_stream_
  std::map<int, Reduction> reductions_;
  int last_reduction_ = ncclNumOps;
};

}  // namespace emulated_gpu::nccl
