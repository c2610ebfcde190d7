// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/stream_table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "support/cuda/handles.h"

namespace tencache {
namespace {

// How often a held stream checks whether it was let go.
constexpr uint64_t kHeldPollNs = 20'000;
// The longest time that a stream is held. A test that waits for its own held work ends after it,
// and not at the test's time limit.
constexpr uint64_t kHeldMaxNs = 120'000'000'000;

}  // namespace

StreamTable::StreamTable(const SimulatedDriverConfig& config, const SimulatedDevices& devices,
                         SimulatedMemory& memory, const HostRegistrations& host,
                         StickyFailure& failure)
    : devices_(devices),
      memory_(memory),
      host_(host),
      failure_(failure),
      reads_may_race_(config.reads_may_race),
      works_first_(config.works_first),
      reuses_stream_handles_(config.reuses_stream_handles),
      to_device_(config.to_device_bytes_per_s, config.copy_latency_ns),
      to_host_(config.to_host_bytes_per_s, config.copy_latency_ns),
      on_device_(config.on_device_bytes_per_s, config.copy_latency_ns),
      queued_kernels_max_(config.queued_kernels_max),
      captures_(devices) {
  for (int device = 0; device < config.device_count; ++device) {
    null_streams_.push_back(std::make_shared<SimulatedStream>(failure, device, StreamKind::kLegacy,
                                                              queued_kernels_max_));
  }
}

StreamTable::~StreamTable() {
  // All streams drop their work at once, because one may wait for an event of another, which comes
  // as soon as the other drops its work.
  failure_.fail(CUDA_ERROR_DEINITIALIZED);
  for (const StreamPointer& stream : all_streams()) stream->stop();
}

int StreamTable::current_device() const {
  return devices_.has_current() ? devices_.current_device() : 0;
}

StreamTable::StreamPointer StreamTable::find(CUstream stream) const {
  if (stream == nullptr || stream == CU_STREAM_LEGACY) {
    return null_streams_[static_cast<size_t>(current_device())];
  }
  MutexLock lock(mutex_);
  const auto found = streams_.find(stream);
  return found != streams_.end() ? found->second : nullptr;
}

std::vector<StreamTable::StreamPointer> StreamTable::all_streams() const {
  MutexLock lock(mutex_);
  std::vector<StreamPointer> all = null_streams_;
  all.insert(all.end(), destroyed_.begin(), destroyed_.end());
  for (const auto& [handle, stream] : streams_) all.push_back(stream);
  return all;
}

void StreamTable::push(SimulatedStream& stream, SimulatedStream::Action action,
                       std::shared_ptr<Marker> marker, WorkKind kind) {
  // The wait for room comes before the lock, which others need to queue what the stream waits for.
  if (kind == WorkKind::kKernel) stream.take_kernel_room();
  if (stream.kind() == StreamKind::kNonBlocking) {
    return stream.push(std::move(action), std::move(marker), kind);
  }
  const StreamKind awaited =
      stream.kind() == StreamKind::kLegacy ? StreamKind::kBlocking : StreamKind::kLegacy;
  MutexLock lock(legacy_mutex_);
  for (const StreamPointer& other : all_streams()) {
    if (other->kind() != awaited || other->device() != stream.device()) continue;
    if (other->unfinished() == 0) continue;
    const auto moment = std::make_shared<Marker>();
    other->push(nullptr, moment);
    stream.push([moment](SimulatedStream& worker, uint64_t) { return worker.wait_for(moment); });
  }
  stream.push(std::move(action), std::move(marker), kind);
}

void StreamTable::expect_stream(CUstream stream, std::string_view function) const {
  // Which of the default streams a function takes is the function's own matter.
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return;
  MutexLock lock(mutex_);
  TENCACHE_CHECK(streams_.contains(stream),
                 "%.*s names the stream %p, which was destroyed or never made",
                 static_cast<int>(function.size()), function.data(), static_cast<void*>(stream));
}

CUresult StreamTable::create_stream(CUstream* stream, unsigned flags, int /*priority*/) {
  if (stream == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  forget_finished();
  const auto kind =
      flags == CU_STREAM_NON_BLOCKING ? StreamKind::kNonBlocking : StreamKind::kBlocking;
  auto made =
      std::make_shared<SimulatedStream>(failure_, current_device(), kind, queued_kernels_max_);
  MutexLock lock(mutex_);
  if (free_handles_.empty()) {
    *stream = handle_of<CUstream>(++last_name_);
  } else {
    *stream = free_handles_.back();
    free_handles_.pop_back();
  }
  streams_[*stream] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult StreamTable::destroy_stream(CUstream stream) {
  forget_finished();
  StreamPointer ended;
  {
    MutexLock lock(mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return CUDA_ERROR_INVALID_HANDLE;
    ended = destroyed_.emplace_back(std::move(found->second));
    streams_.erase(found);
  }
  captures_.forget(*ended);
  MutexLock lock(mutex_);
  if (reuses_stream_handles_) free_handles_.push_back(stream);
  return CUDA_SUCCESS;
}

void StreamTable::forget_finished() {
  std::vector<StreamPointer> finished;  // their threads end outside the lock
  MutexLock lock(mutex_);
  const auto begin_finished =
      std::partition(destroyed_.begin(), destroyed_.end(),
                     [](const StreamPointer& stream) { return stream->unfinished() > 0; });
  finished.assign(begin_finished, destroyed_.end());
  destroyed_.erase(begin_finished, destroyed_.end());
}

CUresult StreamTable::query_stream(CUstream stream) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = captures_.check_wait(*found); error != CUDA_SUCCESS) return error;
  return found->unfinished() == 0 ? failure_.result() : CUDA_ERROR_NOT_READY;
}

CUresult StreamTable::synchronize_stream(CUstream stream) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult error = captures_.check_wait(*found);
  return error != CUDA_SUCCESS ? error : wait_for(*found);
}

CUresult StreamTable::wait_for(SimulatedStream& stream) const {
  auto marker = std::make_shared<Marker>();
  stream.push(nullptr, marker);
  marker->wait();
  return failure_.result();
}

CUresult StreamTable::wait_event(CUstream stream, CUevent event, unsigned flags) {
  const StreamPointer found = find(stream);
  std::shared_ptr<const Marker> moment;
  if (found == nullptr || !find_moment(event, &moment)) return CUDA_ERROR_INVALID_HANDLE;
  // A node of the graph waits for the event that is recorded outside.
  if (flags == CU_EVENT_WAIT_EXTERNAL && captures_.is_capturing(*found)) {
    return queue(*found, [this, event](SimulatedStream& in) { return await_event(event, in); });
  }
  if (flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  if (const auto captured = captures_.wait(*found, event)) return *captured;
  return await_event(event, *found);
}

CUresult StreamTable::await_event(CUevent event, SimulatedStream& stream) {
  std::shared_ptr<const Marker> moment;
  if (!find_moment(event, &moment)) return CUDA_ERROR_INVALID_HANDLE;
  if (moment == nullptr) return CUDA_SUCCESS;
  push(stream, [moment](SimulatedStream& worker, uint64_t) { return worker.wait_for(moment); });
  return CUDA_SUCCESS;
}

CUresult StreamTable::create_event(CUevent* event, unsigned flags) {
  constexpr unsigned kFlags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
  if (event == nullptr || (flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(mutex_);
  *event = handle_of<CUevent>(++last_name_);
  events_[*event] = {current_device(), (flags & CU_EVENT_DISABLE_TIMING) == 0, nullptr};
  return CUDA_SUCCESS;
}

CUresult StreamTable::destroy_event(CUevent event) {
  captures_.forget(event);
  MutexLock lock(mutex_);
  return events_.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult StreamTable::record_event(CUevent event, CUstream stream) {
  return record_event_with_flags(event, stream, CU_EVENT_RECORD_DEFAULT);
}

CUresult StreamTable::record_event_with_flags(CUevent event, CUstream stream, unsigned flags) {
  const StreamPointer found = find(stream);
  if (found == nullptr || !is_event_of(found->device(), event)) return CUDA_ERROR_INVALID_HANDLE;
  // A node of the graph records the event with each launch.
  if (flags == CU_EVENT_RECORD_EXTERNAL && captures_.is_capturing(*found)) {
    return queue(*found, [this, event](SimulatedStream& in) { return mark_event(event, in); });
  }
  if (flags != CU_EVENT_RECORD_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  if (const auto captured = captures_.record(event, *found)) return *captured;
  return mark_event(event, *found);
}

// The event stands for the marker once that is queued: whoever waits for it then waits for nothing
// that is queued later.
CUresult StreamTable::mark_event(CUevent event, SimulatedStream& stream) {
  auto marker = std::make_shared<Marker>();
  push(stream, nullptr, marker);
  {
    MutexLock lock(mutex_);
    const auto recorded = events_.find(event);
    if (recorded == events_.end()) return CUDA_ERROR_INVALID_HANDLE;
    recorded->second.last = std::move(marker);
  }
  return CUDA_SUCCESS;
}

bool StreamTable::is_event_of(int device, CUevent event) const {
  MutexLock lock(mutex_);
  const auto found = events_.find(event);
  return found != events_.end() && found->second.device == device;
}

bool StreamTable::find_moment(CUevent event, std::shared_ptr<const Marker>* moment) const {
  MutexLock lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return false;
  *moment = found->second.last;
  return true;
}

CUresult StreamTable::query_event(CUevent event) {
  std::shared_ptr<const Marker> moment;
  if (!find_moment(event, &moment)) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = captures_.check_wait(event); error != CUDA_SUCCESS) return error;
  if (moment != nullptr && !moment->is_complete()) return CUDA_ERROR_NOT_READY;
  return failure_.result();
}

CUresult StreamTable::synchronize_event(CUevent event) {
  std::shared_ptr<const Marker> moment;
  if (!find_moment(event, &moment)) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = captures_.check_wait(event); error != CUDA_SUCCESS) return error;
  if (moment != nullptr) moment->wait();
  return failure_.result();
}

CUresult StreamTable::elapsed_time(float* milliseconds, CUevent start, CUevent end) {
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const CUevent event : {start, end}) {
    const CUresult error = captures_.check_uncaptured(event);
    if (error != CUDA_SUCCESS) return error;
  }
  std::array<std::shared_ptr<const Marker>, 2> moments;
  {
    MutexLock lock(mutex_);
    const auto first = events_.find(start);
    const auto second = events_.find(end);
    for (const auto& found : {first, second}) {
      if (found == events_.end() || !found->second.has_timing || found->second.last == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
      }
    }
    if (first->second.device != second->second.device) return CUDA_ERROR_INVALID_HANDLE;
    moments = {first->second.last, second->second.last};
  }
  if (!moments[0]->is_complete() || !moments[1]->is_complete()) return CUDA_ERROR_NOT_READY;
  const auto elapsed_ns = static_cast<int64_t>(moments[1]->wait() - moments[0]->wait());
  *milliseconds = static_cast<float>(static_cast<double>(elapsed_ns) * 1e-6);
  return CUDA_SUCCESS;
}

CUresult StreamTable::hold(CUstream stream) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  found->push([this, until = lettings_go_ + 1](SimulatedStream& worker, uint64_t) {
    wait_held(worker, until);
    return now_ns();
  });
  return CUDA_SUCCESS;
}

void StreamTable::wait_held(SimulatedStream& worker, uint64_t until) const {
  const uint64_t begin_ns = now_ns();
  worker.note_held(until);
  while (lettings_go_ < until && worker.pause_until(now_ns() + kHeldPollNs)) {
    TENCACHE_CHECK(now_ns() - begin_ns < kHeldMaxNs,
                   "a stream was held for two minutes and nobody let it go");
  }
}

// Looks twice, because the event that one stream waits for may have come while another stream was
// looked at. Once all others stand still, no event comes any more.
bool StreamTable::is_stuck() const {
  bool waits = false;
  for (int round = 0; round < 2; ++round) {
    for (const StreamPointer& stream : all_streams()) {
      const Standing standing = stream->standing(lettings_go_);
      if (standing == Standing::kGoesOn) return false;
      waits |= standing == Standing::kWaitsForEvent;
    }
  }
  return waits;
}

size_t StreamTable::unfinished(CUstream stream) const {
  const StreamPointer found = find(stream);
  TENCACHE_CHECK(found != nullptr, "there is no stream %p", static_cast<void*>(stream));
  return found->unfinished();
}

size_t StreamTable::unfinished() const {
  size_t count = 0;
  for (const StreamPointer& stream : all_streams()) count += stream->unfinished();
  return count;
}

void StreamTable::wait_until_idle() {
  for (const StreamPointer& stream : all_streams()) stream->wait_until_idle();
}

StreamTimes StreamTable::times(CUstream stream) const {
  const StreamPointer found = find(stream);
  TENCACHE_CHECK(found != nullptr, "there is no stream %p", static_cast<void*>(stream));
  return found->times();
}

void StreamTable::reset_times() {
  late_ = 0;
  lag_ns_ = 0;
  for (const StreamPointer& stream : all_streams()) stream->reset_times();
}

CUresult StreamTable::synchronize() {
  const CUresult error = captures_.check_device_wait(current_device());
  return error != CUDA_SUCCESS ? error : wait_for_device();
}

CUresult StreamTable::wait_for_device() const {
  std::vector<std::shared_ptr<Marker>> markers;  // behind what the device's streams have queued
  for (const StreamPointer& stream : all_streams()) {
    if (stream->device() != current_device()) continue;
    stream->push(nullptr, markers.emplace_back(std::make_shared<Marker>()));
  }
  for (const auto& marker : markers) marker->wait();
  return failure_.result();
}

std::string StreamTable::leaks() const {
  MutexLock lock(mutex_);
  std::string text;
  const auto add = [&text](const char* what, const void* handle) {
    char line[64];
    snprintf(line, sizeof(line), "%s %p\n", what, handle);
    text += line;
  };
  for (const auto& [handle, stream] : streams_) add("stream", handle);
  for (const auto& [handle, event] : events_) add("event", handle);
  return text;
}

}  // namespace tencache
