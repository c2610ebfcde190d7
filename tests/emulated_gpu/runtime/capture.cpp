// SPDX-License-Identifier: Apache-2.0
#include "capture.h"

#include <algorithm>
#include <utility>

#include "contexts.h"
#include "stream_kinds.h"

namespace emulated_gpu::runtime {

namespace {

bool is_legacy(CUstream stream) { return stream == nullptr || stream == CU_STREAM_LEGACY; }

// The driver can only swap the mode, so this swaps it back.
cudaStreamCaptureMode mode_of_thread() {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver().cuThreadExchangeStreamCaptureMode(&mode);
  const CUstreamCaptureMode found = mode;
  driver().cuThreadExchangeStreamCaptureMode(&mode);
  return static_cast<cudaStreamCaptureMode>(found);
}

CUcontext current_context() {
  CUcontext context = nullptr;
  driver().cuCtxGetCurrent(&context);
  return context;
}

}  // namespace

Captures& Captures::instance() {
  static auto* const made = new Captures;
  return *made;
}

Captures::Member* Captures::find(CUstream stream) {
  const auto found = members_.find(stream);
  return found != members_.end() ? &found->second : nullptr;
}

void Captures::add(CUstream stream, Member member) {
  members_[stream] = std::move(member);
  driver().set_capturing(stream, 1);
  count();
}

void Captures::count() { is_used_ = !members_.empty() || !events_.empty(); }

cudaError_t Captures::obstacle(CUstream stream) {
  if (!is_legacy(stream)) {
    const Member* member = find(stream);
    return member != nullptr && member->capture->is_invalid ? cudaErrorStreamCaptureInvalidated
                                                            : cudaSuccess;
  }
  CUcontext context = current_context();
  cudaError_t found = cudaSuccess;
  for (const auto& [other, member] : members_) {
    if (member.capture->context != context || !StreamKinds::instance().is_blocking(other)) continue;
    member.capture->is_invalid = true;
    found = cudaErrorStreamCaptureImplicit;
  }
  return found;
}

cudaError_t Captures::begin(CUstream stream, cudaStreamCaptureMode mode) {
  if (is_legacy(stream)) return cudaErrorStreamCaptureUnsupported;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult known = ready().cuStreamIsCapturing(stream, &status);
  if (known != CUDA_SUCCESS) return static_cast<cudaError_t>(known);
  const std::lock_guard lock(mutex_);
  if (find(stream) != nullptr) return cudaErrorIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->id = ++last_id_;
  capture->origin = stream;
  capture->context = current_context();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->graph = std::make_unique<Graph>();
  add(stream, {std::move(capture), {}});
  return cudaSuccess;
}

cudaError_t Captures::end(CUstream stream, std::unique_ptr<Graph>* graph) {
  std::unique_ptr<Graph> made;  // so that it is destroyed without the lock
  const std::lock_guard lock(mutex_);
  const Member* member = find(stream);
  if (member == nullptr) return cudaErrorIllegalState;
  const std::shared_ptr<Capture> capture = member->capture;
  if (capture->origin != stream) return cudaErrorStreamCaptureUnmatched;
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id())
    return cudaErrorStreamCaptureWrongThread;
  const bool is_joined = capture->graph->ends_in(member->last);
  std::erase_if(members_, [&](const auto& entry) {
    if (entry.second.capture != capture) return false;
    driver().set_capturing(entry.first, 0);
    return true;
  });
  count();
  made = std::move(capture->graph);
  if (capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
  if (!is_joined) return cudaErrorStreamCaptureUnjoined;
  *graph = std::move(made);
  return cudaSuccess;
}

Captures::State Captures::state(CUstream stream) const {
  if (!is_used_) return {};
  const std::lock_guard lock(mutex_);
  const auto found = members_.find(stream);
  if (found == members_.end()) return {};
  const Capture& capture = *found->second.capture;
  if (capture.is_invalid) return {cudaStreamCaptureStatusInvalidated, capture.id, nullptr, nullptr};
  return {cudaStreamCaptureStatusActive, capture.id, capture.graph.get(), &found->second.last};
}

bool Captures::is_capturing(CUstream stream) const {
  return state(stream).status != cudaStreamCaptureStatusNone;
}

CUresult Captures::queue(CUstream stream, Work work) {
  if (!is_used_) return work(stream);
  {
    const std::lock_guard lock(mutex_);
    const cudaError_t error = obstacle(stream);
    if (error != cudaSuccess) return static_cast<CUresult>(error);
    if (Member* member = find(stream)) {
      member->last = {member->capture->graph->add(std::move(work), std::move(member->last))};
      return CUDA_SUCCESS;
    }
  }
  return work(stream);
}

std::optional<cudaError_t> Captures::record(CUevent event, CUstream stream) {
  if (!is_used_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const cudaError_t error = obstacle(stream);
  if (error != cudaSuccess) return error;
  const Member* member = find(stream);
  if (member == nullptr) {
    events_.erase(event);
    count();
    return std::nullopt;
  }
  events_[event] = *member;
  return cudaSuccess;
}

std::optional<cudaError_t> Captures::wait(CUstream stream, CUevent event) {
  if (!is_used_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const cudaError_t error = obstacle(stream);
  if (error != cudaSuccess) return error;
  Member* member = find(stream);
  const auto found = events_.find(event);
  const bool is_captured = found != events_.end() && found->second.capture->graph != nullptr;
  if (!is_captured) {
    if (member == nullptr)
      return found != events_.end() ? std::optional(cudaErrorCapturedEvent) : std::nullopt;
    member->capture->is_invalid = true;
    return cudaErrorStreamCaptureIsolation;
  }
  const Member& before = found->second;
  if (before.capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
  if (is_legacy(stream)) {
    before.capture->is_invalid = true;
    return cudaErrorStreamCaptureImplicit;
  }
  if (member == nullptr) {
    add(stream, before);
    return cudaSuccess;
  }
  if (member->capture != before.capture) {
    member->capture->is_invalid = before.capture->is_invalid = true;
    return cudaErrorStreamCaptureMerge;
  }
  for (Node* node : before.last) {
    if (std::find(member->last.begin(), member->last.end(), node) == member->last.end())
      member->last.push_back(node);
  }
  return cudaSuccess;
}

void Captures::forget(CUstream stream) {
  if (!is_used_) return;
  const std::lock_guard lock(mutex_);
  Member* member = find(stream);
  if (member == nullptr) return;
  member->capture->is_invalid = true;
  driver().set_capturing(stream, 0);
  members_.erase(stream);
  count();
}

void Captures::forget(CUevent event) {
  if (!is_used_) return;
  const std::lock_guard lock(mutex_);
  events_.erase(event);
  count();
}

cudaError_t Captures::check_use(CUstream stream) {
  if (!is_used_) return cudaSuccess;
  const std::lock_guard lock(mutex_);
  return obstacle(stream);
}

cudaError_t Captures::forbid_outside(CUstream stream) {
  if (!is_used_) return cudaSuccess;
  const std::lock_guard lock(mutex_);
  const cudaError_t error = obstacle(stream);
  const Member* member = find(stream);
  if (error != cudaSuccess || member == nullptr) return error;
  member->capture->is_invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t Captures::forbid_captured(CUevent event) {
  if (!is_used_) return cudaSuccess;
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return cudaSuccess;
  found->second.capture->is_invalid = true;
  return cudaErrorCapturedEvent;
}

cudaError_t Captures::forbid_device_wait() {
  if (!is_used_) return cudaSuccess;
  const CUcontext context = current_context();
  const std::lock_guard lock(mutex_);
  cudaError_t found = cudaSuccess;
  for (const auto& [stream, member] : members_) {
    if (member.capture->context != context) continue;
    member.capture->is_invalid = true;
    found = cudaErrorStreamCaptureUnsupported;
  }
  return found;
}

cudaError_t Captures::forbid_unsafe() {
  if (!is_used_) return cudaSuccess;
  const cudaStreamCaptureMode mode = mode_of_thread();
  if (mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  const std::lock_guard lock(mutex_);
  cudaError_t found = cudaSuccess;
  for (const auto& [stream, member] : members_) {
    Capture& capture = *member.capture;
    const bool is_own = capture.thread == std::this_thread::get_id();
    const bool forbids =
        (is_own && capture.mode != cudaStreamCaptureModeRelaxed) ||
        (mode == cudaStreamCaptureModeGlobal && capture.mode == cudaStreamCaptureModeGlobal);
    if (!forbids) continue;
    capture.is_invalid = true;
    found = cudaErrorStreamCaptureUnsupported;
  }
  return found;
}

}  // namespace emulated_gpu::runtime
