// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/simulated_captures.h"

#include <algorithm>
#include <utility>

namespace tencache {

namespace {

bool waits_for(const SimulatedStream& stream, const SimulatedStream& other) {
  return stream.kind() == StreamKind::kLegacy && other.kind() == StreamKind::kBlocking &&
         other.device() == stream.device();
}

}  // namespace

SimulatedCaptures::Member* SimulatedCaptures::find(const SimulatedStream& stream) {
  const auto found = members_.find(&stream);
  return found != members_.end() ? &found->second : nullptr;
}

void SimulatedCaptures::count() { is_used_ = !members_.empty() || !events_.empty(); }

CUresult SimulatedCaptures::obstacle(const SimulatedStream& stream) {
  const Member* const own = find(stream);
  if (own != nullptr && own->capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  CUresult found = CUDA_SUCCESS;
  for (const auto& [other, member] : members_) {
    if (!waits_for(stream, *other)) continue;
    member.capture->is_invalid = true;
    found = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return found;
}

CUresult SimulatedCaptures::begin(const SimulatedStream& stream, CUstreamCaptureMode mode) {
  if (stream.kind() == StreamKind::kLegacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  MutexLock lock(mutex_);
  if (find(stream) != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = ++last_id_;
  capture->origin = &stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->graph = std::make_unique<SimulatedGraph>();
  members_[&stream] = {std::move(capture), {}};
  count();
  return CUDA_SUCCESS;
}

CUresult SimulatedCaptures::end(const SimulatedStream& stream,
                                std::unique_ptr<SimulatedGraph>* graph) {
  std::unique_ptr<SimulatedGraph> made;  // so that it is destroyed without the lock
  MutexLock lock(mutex_);
  const Member* const member = find(stream);
  if (member == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  const std::shared_ptr<Capture> capture = member->capture;
  if (capture->origin != &stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->thread != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  const bool is_joined = capture->graph->ends_in(member->last);
  std::erase_if(members_, [&](const auto& entry) { return entry.second.capture == capture; });
  count();
  made = std::move(capture->graph);
  if (capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!is_joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *graph = std::move(made);
  return CUDA_SUCCESS;
}

SimulatedCaptures::State SimulatedCaptures::state(const SimulatedStream& stream) const {
  if (!is_used_) return {};
  MutexLock lock(mutex_);
  const auto found = members_.find(&stream);
  if (found == members_.end()) return {};
  const Capture& capture = *found->second.capture;
  if (capture.is_invalid) {
    return {CU_STREAM_CAPTURE_STATUS_INVALIDATED, capture.id, nullptr, nullptr};
  }
  return {CU_STREAM_CAPTURE_STATUS_ACTIVE, capture.id, capture.graph.get(), &found->second.last};
}

bool SimulatedCaptures::is_unusable(const SimulatedStream& stream) const {
  if (!is_used_) return false;
  MutexLock lock(mutex_);
  return std::ranges::any_of(members_,
                             [&](const auto& entry) { return waits_for(stream, *entry.first); });
}

std::optional<CUresult> SimulatedCaptures::add(const SimulatedStream& stream, GraphWork work) {
  if (!is_used_) return std::nullopt;
  MutexLock lock(mutex_);
  if (const CUresult error = obstacle(stream); error != CUDA_SUCCESS) return error;
  Member* const member = find(stream);
  if (member == nullptr) return std::nullopt;
  member->last = {member->capture->graph->add(std::move(work), std::move(member->last))};
  return CUDA_SUCCESS;
}

std::optional<CUresult> SimulatedCaptures::record(CUevent event, const SimulatedStream& stream) {
  if (!is_used_) return std::nullopt;
  MutexLock lock(mutex_);
  if (const CUresult error = obstacle(stream); error != CUDA_SUCCESS) return error;
  const Member* const member = find(stream);
  if (member == nullptr) {
    events_.erase(event);
    count();
    return std::nullopt;
  }
  events_[event] = *member;
  return CUDA_SUCCESS;
}

std::optional<CUresult> SimulatedCaptures::wait(const SimulatedStream& stream, CUevent event) {
  if (!is_used_) return std::nullopt;
  MutexLock lock(mutex_);
  if (const CUresult error = obstacle(stream); error != CUDA_SUCCESS) return error;
  Member* const member = find(stream);
  const auto found = events_.find(event);
  const bool is_captured = found != events_.end() && found->second.capture->graph != nullptr;
  if (!is_captured && member == nullptr) {
    return found != events_.end() ? std::optional(CUDA_ERROR_CAPTURED_EVENT) : std::nullopt;
  }
  if (!is_captured) {
    member->capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  const Member& before = found->second;
  if (before.capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream.kind() == StreamKind::kLegacy) {
    before.capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (member == nullptr) {
    members_[&stream] = before;
    return CUDA_SUCCESS;
  }
  if (member->capture != before.capture) {
    member->capture->is_invalid = before.capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  for (GraphNode* const node : before.last) {
    if (std::ranges::find(member->last, node) == member->last.end()) member->last.push_back(node);
  }
  return CUDA_SUCCESS;
}

void SimulatedCaptures::forget(const SimulatedStream& stream) {
  if (!is_used_) return;
  std::shared_ptr<Capture> capture;  // so that a graph is destroyed without the lock
  MutexLock lock(mutex_);
  Member* const member = find(stream);
  if (member == nullptr) return;
  capture = member->capture;
  capture->is_invalid = true;
  // Only the stream where it began can end a capture.
  const bool is_over = capture->origin == &stream;
  std::erase_if(members_, [&](const auto& entry) {
    return entry.first == &stream || (is_over && entry.second.capture == capture);
  });
  count();
}

void SimulatedCaptures::forget(CUevent event) {
  if (!is_used_) return;
  Member forgotten;  // so that its graph is destroyed without the lock
  MutexLock lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return;
  forgotten = std::move(found->second);
  events_.erase(found);
  count();
}

CUresult SimulatedCaptures::check_use(const SimulatedStream& stream) {
  if (!is_used_) return CUDA_SUCCESS;
  MutexLock lock(mutex_);
  return obstacle(stream);
}

CUresult SimulatedCaptures::check_outside(const SimulatedStream& stream) {
  if (!is_used_) return CUDA_SUCCESS;
  MutexLock lock(mutex_);
  const CUresult error = obstacle(stream);
  const Member* const member = find(stream);
  if (error != CUDA_SUCCESS || member == nullptr) return error;
  member->capture->is_invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult SimulatedCaptures::check_wait(const SimulatedStream& stream) {
  const CUresult error = check_outside(stream);
  return error != CUDA_SUCCESS ? error : check_unsafe();
}

CUresult SimulatedCaptures::check_wait(CUevent event) {
  const CUresult error = check_uncaptured(event);
  return error != CUDA_SUCCESS ? error : check_unsafe();
}

CUresult SimulatedCaptures::check_uncaptured(CUevent event) {
  if (!is_used_) return CUDA_SUCCESS;
  MutexLock lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return CUDA_SUCCESS;
  found->second.capture->is_invalid = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult SimulatedCaptures::check_device_wait(int device) {
  if (!is_used_) return CUDA_SUCCESS;
  MutexLock lock(mutex_);
  CUresult found = CUDA_SUCCESS;
  for (const auto& [stream, member] : members_) {
    if (stream->device() != device) continue;
    member.capture->is_invalid = true;
    found = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return found;
}

CUresult SimulatedCaptures::check_unsafe() {
  if (!is_used_) return CUDA_SUCCESS;
  const CUstreamCaptureMode mode = devices_.capture_mode();
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  MutexLock lock(mutex_);
  CUresult found = CUDA_SUCCESS;
  for (const auto& [stream, member] : members_) {
    Capture& capture = *member.capture;
    const bool is_own = capture.thread == std::this_thread::get_id();
    const bool forbids =
        (is_own && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED) ||
        (mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (!forbids) continue;
    capture.is_invalid = true;
    found = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return found;
}

}  // namespace tencache
