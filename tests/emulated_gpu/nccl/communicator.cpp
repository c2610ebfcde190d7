// SPDX-License-Identifier: Apache-2.0
//
// Splits, runs, and the order of a communicator's streams.
#include "communicator.h"

#include <algorithm>
#include <utility>

#include "errors.h"

namespace emulated_gpu::nccl {

namespace {

ncclResult_t check(cudaError_t error) {
  if (error == cudaSuccess) return ncclSuccess;
  return fail(ncclUnhandledCudaError, "%s", cudaGetErrorString(error));
}

ncclResult_t find_capturing(cudaStream_t stream, bool* is_capturing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const ncclResult_t result = check(cudaStreamIsCapturing(stream, &status));
  *is_capturing = status != cudaStreamCaptureStatusNone;
  return result;
}

}  // namespace

ncclResult_t Communicator::keep(ncclResult_t result) {
  if (result != ncclSuccess) error_ = result;
  return result;
}

ncclResult_t Communicator::split(int color, int key, std::shared_ptr<Communicator>* made) {
  Vote& own = meeting_.vote(rank());
  own = {color, key, {}};
  if (const ncclResult_t result = meeting_.pass_barrier(); result != ncclSuccess) return result;
  std::vector<std::pair<int, int>> members;  // key and rank
  for (int other = 0; other < count(); ++other) {
    const Vote& vote = meeting_.vote(other);
    if (vote.color == color) members.emplace_back(vote.key, other);
  }
  std::sort(members.begin(), members.end());
  const int first = members.front().second;
  const bool is_member = color != NCCL_SPLIT_NOCOLOR;
  if (is_member && first == rank()) own.place = make_place().value_or(Place());
  if (const ncclResult_t result = meeting_.pass_barrier(); result != ncclSuccess) return result;
  const Place place = meeting_.vote(first).place;
  // Every rank must have read the votes before the next split overwrites them.
  if (const ncclResult_t result = meeting_.pass_barrier(); result != ncclSuccess) return result;
  if (!is_member) return ncclSuccess;
  const auto self = std::find(members.begin(), members.end(), std::pair(key, rank()));
  *made = std::make_shared<Communicator>(place, static_cast<int>(self - members.begin()),
                                         static_cast<int>(members.size()), device_);
  return (*made)->join();
}

ncclResult_t Communicator::enter_stream(cudaStream_t stream) {
  if (error_ != ncclSuccess) return error_;
  bool is_capturing = false;
  const ncclResult_t result = find_capturing(stream, &is_capturing);
  const std::lock_guard lock(mutex_);
  const bool is_last = last_event_ == nullptr || last_stream_ == stream;
  if (result != ncclSuccess || is_capturing || is_last) return result;
  return check(cudaStreamWaitEvent(stream, last_event_, 0));
}

ncclResult_t Communicator::mark_stream(cudaStream_t stream) {
  bool is_capturing = false;
  const ncclResult_t result = find_capturing(stream, &is_capturing);
  if (result != ncclSuccess || is_capturing) return result;
  const std::lock_guard lock(mutex_);
  if (last_event_ == nullptr) {
    const cudaError_t made = cudaEventCreateWithFlags(&last_event_, cudaEventDisableTiming);
    if (made != cudaSuccess) return check(made);
  }
  last_stream_ = stream;
  return check(cudaEventRecord(last_event_, stream));
}

void Communicator::run(const std::vector<Operation>& operations) {
  if (is_running_.exchange(true)) {
    keep(fail(ncclInvalidUsage, "two operations of one communicator run at the same time"));
    return;
  }
  keep(nccl::run(&meeting_, operations));
  is_running_ = false;
}

void Communicator::close() {
  const std::lock_guard lock(mutex_);
  if (last_event_ != nullptr) cudaEventDestroy(std::exchange(last_event_, nullptr));
}

ncclRedOp_t Communicator::add_factor(ncclDataType_t type, const Factor& factor) {
  const std::lock_guard lock(mutex_);
  reductions_[last_reduction_] = {ncclSum, type, factor};
  return static_cast<ncclRedOp_t>(last_reduction_++);
}

bool Communicator::remove_factor(ncclRedOp_t operation) {
  const std::lock_guard lock(mutex_);
  return reductions_.erase(operation) != 0;
}

std::optional<Reduction> Communicator::find_reduction(ncclRedOp_t operation,
                                                      ncclDataType_t type) const {
  if (!is_reducible(type)) return std::nullopt;
  if (operation >= 0 && operation < ncclNumOps) return Reduction{operation, type, std::nullopt};
  const std::lock_guard lock(mutex_);
  const auto found = reductions_.find(operation);
  if (found == reductions_.end() || found->second.type != type) return std::nullopt;
  return found->second;
}

}  // namespace emulated_gpu::nccl
