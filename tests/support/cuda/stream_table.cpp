// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/stream_table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/racy_access.h"

namespace tencache {
namespace {

// How often a stream looks at a value that it waits for, or whether copies are held still.
constexpr uint64_t kPollNs = 20'000;
// A test that waits for what it holds back itself ends here, and not when its time is up.
constexpr uint64_t kHeldMaxNs = 120'000'000'000;

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
CUdeviceptr address_of(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

std::atomic_ref<uint64_t> value_at(CUdeviceptr address) {
  return std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(pointer(address)));
}

// Streams and events are numbers that look like addresses. None is ever used again, so what was
// destroyed is always found out.
template <typename Handle>
Handle handle_of(uint64_t name) {
  return reinterpret_cast<Handle>(name * 16);
}

}  // namespace

StreamTable::StreamTable(const SimulatedDriverConfig& config, SimulatedMemory& memory,
                         const HostRegistrations& host, StickyFailure& failure)
    : memory_(memory),
      host_(host),
      failure_(failure),
      reads_may_race_(config.reads_may_race),
      to_device_(config.to_device_bytes_per_s, config.copy_latency_ns),
      to_host_(config.to_host_bytes_per_s, config.copy_latency_ns),
      on_device_(config.on_device_bytes_per_s, config.copy_latency_ns) {
  MutexLock lock(mutex_);
  streams_[nullptr] = std::make_shared<SimulatedStream>(failure);
}

StreamTable::~StreamTable() {
  // All at once drop their work: one may wait for an event of another, which comes as soon as that
  // one drops its own.
  failure_.fail(CUDA_ERROR_DEINITIALIZED);
  for (const StreamPointer& stream : all_streams()) stream->stop();
}

StreamTable::StreamPointer StreamTable::find(CUstream stream) const {
  MutexLock lock(mutex_);
  const auto found = streams_.find(stream == CU_STREAM_LEGACY ? nullptr : stream);
  return found != streams_.end() ? found->second : nullptr;
}

std::vector<StreamTable::StreamPointer> StreamTable::all_streams() const {
  MutexLock lock(mutex_);
  std::vector<StreamPointer> all = destroyed_;
  for (const auto& [handle, stream] : streams_) all.push_back(stream);
  return all;
}

CUresult StreamTable::create_stream(CUstream* stream, unsigned flags, int /*priority*/) {
  if (stream == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  forget_finished();
  auto made = std::make_shared<SimulatedStream>(failure_);
  MutexLock lock(mutex_);
  *stream = handle_of<CUstream>(++last_name_);
  streams_[*stream] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult StreamTable::destroy_stream(CUstream stream) {
  forget_finished();
  MutexLock lock(mutex_);
  const auto found = streams_.find(stream);
  if (stream == nullptr || found == streams_.end()) return CUDA_ERROR_INVALID_HANDLE;
  destroyed_.push_back(std::move(found->second));
  capturing_.erase(stream);
  streams_.erase(found);
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
  return found->unfinished() == 0 ? failure_.result() : CUDA_ERROR_NOT_READY;
}

CUresult StreamTable::synchronize_stream(CUstream stream) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  auto marker = std::make_shared<Marker>();
  found->push(nullptr, marker);
  marker->wait();
  return failure_.result();
}

CUresult StreamTable::wait_event(CUstream stream, CUevent event, unsigned flags) {
  if (flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  const StreamPointer found = find(stream);
  std::shared_ptr<const Marker> moment;
  if (found == nullptr || !find_moment(event, &moment)) return CUDA_ERROR_INVALID_HANDLE;
  if (captures(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (moment == nullptr) return CUDA_SUCCESS;
  found->push([moment](SimulatedStream&, uint64_t) { return moment->wait(); });
  return CUDA_SUCCESS;
}

CUresult StreamTable::is_capturing(CUstream stream, CUstreamCaptureStatus* status) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (find(stream) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *status = captures(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

void StreamTable::set_capturing(CUstream stream, bool is_capturing) {
  TENCACHE_CHECK(find(stream) != nullptr, "there is no stream %p", static_cast<void*>(stream));
  MutexLock lock(mutex_);
  if (is_capturing) {
    capturing_.insert(stream);
  } else {
    capturing_.erase(stream);
  }
}

bool StreamTable::captures(CUstream stream) const {
  MutexLock lock(mutex_);
  return capturing_.contains(stream);
}

bool StreamTable::is_value_place(const DeviceRange& range) const {
  if (range.address % sizeof(uint64_t) != 0) return false;
  const SimulatedMemory::Place place = memory_.place_of(range);
  if (place.is_reserved) return place.is_accessible;
  return host_.kind(pointer(range.address), range.bytes) == HostMemoryKind::kRegistered;
}

CUresult StreamTable::wait_value(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                 unsigned flags) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != CU_STREAM_WAIT_VALUE_EQ && flags != CU_STREAM_WAIT_VALUE_GEQ) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const DeviceRange place = {address, sizeof(uint64_t), false};
  if (!is_value_place(place)) return CUDA_ERROR_INVALID_VALUE;
  const bool is_in_device_memory = memory_.place_of(place).is_reserved;
  found->push(
      [this, place, value, flags, is_in_device_memory](SimulatedStream& worker, uint64_t begin_ns) {
        uint64_t access = 0;
        if (is_in_device_memory && (access = memory_.begin_access({&place, 1})) == 0) {
          failure_.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
          return begin_ns;
        }
        const auto is_reached = [&] {
          const uint64_t present = value_at(place.address).load(std::memory_order_acquire);
          return flags == CU_STREAM_WAIT_VALUE_EQ ? present == value
                                                  : static_cast<int64_t>(present - value) >= 0;
        };
        bool has_waited = false;
        while (!is_reached() && worker.pause_until(now_ns() + kPollNs)) has_waited = true;
        if (access != 0) memory_.end_access(access);
        return has_waited ? now_ns() : begin_ns;
      });
  return CUDA_SUCCESS;
}

CUresult StreamTable::write_value(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                  unsigned flags) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const DeviceRange place = {address, sizeof(uint64_t), true};
  if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER || !is_value_place(place)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<DeviceRange> touches;
  if (memory_.place_of(place).is_reserved) touches.push_back(place);
  found->push([this, touches, address, value](SimulatedStream& worker, uint64_t begin_ns) {
    return perform(
        worker, touches, begin_ns, begin_ns,
        [address, value] { value_at(address).store(value, std::memory_order_release); },
        thread_work_ns);
  });
  return CUDA_SUCCESS;
}

CUresult StreamTable::launch_host_function(CUstream stream, CUhostFn function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return launch(
      stream, {}, [function, data] { function(data); }, 0);
}

CUresult StreamTable::create_event(CUevent* event, unsigned flags) {
  constexpr unsigned kFlags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
  if (event == nullptr || (flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(mutex_);
  *event = handle_of<CUevent>(++last_name_);
  events_[*event] = {(flags & CU_EVENT_DISABLE_TIMING) == 0, nullptr};
  return CUDA_SUCCESS;
}

CUresult StreamTable::destroy_event(CUevent event) {
  MutexLock lock(mutex_);
  return events_.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult StreamTable::record_event(CUevent event, CUstream stream) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (captures(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  auto marker = std::make_shared<Marker>();
  {
    MutexLock lock(mutex_);
    const auto recorded = events_.find(event);
    if (recorded == events_.end()) return CUDA_ERROR_INVALID_HANDLE;
    recorded->second.last = marker;
  }
  found->push(nullptr, std::move(marker));
  return CUDA_SUCCESS;
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
  if (moment != nullptr && !moment->is_complete()) return CUDA_ERROR_NOT_READY;
  return failure_.result();
}

CUresult StreamTable::synchronize_event(CUevent event) {
  std::shared_ptr<const Marker> moment;
  if (!find_moment(event, &moment)) return CUDA_ERROR_INVALID_HANDLE;
  if (moment != nullptr) moment->wait();
  return failure_.result();
}

CUresult StreamTable::elapsed_time(float* milliseconds, CUevent start, CUevent end) {
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
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
    moments = {first->second.last, second->second.last};
  }
  if (!moments[0]->is_complete() || !moments[1]->is_complete()) return CUDA_ERROR_NOT_READY;
  const auto elapsed_ns = static_cast<int64_t>(moments[1]->wait() - moments[0]->wait());
  *milliseconds = static_cast<float>(static_cast<double>(elapsed_ns) * 1e-6);
  return CUDA_SUCCESS;
}

uint64_t StreamTable::perform(SimulatedStream& stream, std::span<const DeviceRange> touches,
                              uint64_t begin_ns, uint64_t end_ns, const std::function<void()>& work,
                              Clock clock) {
  const uint64_t access = memory_.begin_access(touches);
  if (access == 0) {
    failure_.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
    return begin_ns;
  }
  uint64_t work_ns = 0;
  if (stream.pause_until(end_ns)) {
    const uint64_t started_ns = clock();
    work();
    work_ns = clock() - started_ns;
  }
  memory_.end_access(access);
  // Work that by itself takes longer than the time it was given makes the stream that late.
  return std::max(end_ns, begin_ns + work_ns);
}

HostMemoryKind StreamTable::host_kind(const void* memory, size_t bytes, bool is_written) const {
  const SimulatedMemory::Place place = memory_.place_of({address_of(memory), bytes, is_written});
  // Memory of a NUMA node that is mapped is as good as registered; the device's is not the host's.
  if (place.is_reserved) {
    return place.is_accessible && place.is_host ? HostMemoryKind::kRegistered
                                                : HostMemoryKind::kTorn;
  }
  return host_.kind(memory, bytes);
}

CUresult StreamTable::push_copy(CopyEngine& engine, std::vector<DeviceRange> touches, void* target,
                                const void* source, size_t bytes, CUstream stream,
                                bool is_synchronous) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (const DeviceRange& range : touches) {
    if (!memory_.place_of(range).is_accessible) return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes == 0) return CUDA_SUCCESS;
  const auto marker = is_synchronous ? std::make_shared<Marker>() : nullptr;
  const auto copy = [target, source, bytes, is_racy = reads_may_race_ && &engine == &to_host_] {
    std::optional<RacyReads> racy;
    if (is_racy) racy.emplace();
    memmove(target, source, bytes);
  };
  found->push(
      [this, &engine, touches = std::move(touches), copy, bytes](SimulatedStream& worker,
                                                                 uint64_t begin_ns) {
        if (copies_let_through_.fetch_sub(1) <= 0) {
          wait_held(worker, copies_held_until_);
          begin_ns = std::max<uint64_t>(begin_ns, let_go_ns_);
        }
        return perform(worker, touches, begin_ns, engine.take(begin_ns, bytes), copy,
                       thread_work_ns);
      },
      marker);
  if (marker == nullptr) return CUDA_SUCCESS;
  marker->wait();
  return failure_.result();
}

CUresult StreamTable::copy_to_device(CUdeviceptr target, const void* source, size_t bytes,
                                     CUstream stream) {
  const HostMemoryKind kind = host_kind(source, bytes, false);
  if (kind == HostMemoryKind::kTorn) return CUDA_ERROR_INVALID_VALUE;
  return push_copy(to_device_, {{target, bytes, true}}, pointer(target), source, bytes, stream,
                   kind == HostMemoryKind::kPageable);
}

CUresult StreamTable::copy_to_host(void* target, CUdeviceptr source, size_t bytes,
                                   CUstream stream) {
  const HostMemoryKind kind = host_kind(target, bytes, true);
  if (kind == HostMemoryKind::kTorn) return CUDA_ERROR_INVALID_VALUE;
  return push_copy(to_host_, {{source, bytes, false}}, target, pointer(source), bytes, stream,
                   kind == HostMemoryKind::kPageable);
}

CUresult StreamTable::copy_on_device(CUdeviceptr target, CUdeviceptr source, size_t bytes,
                                     CUstream stream) {
  const std::vector<DeviceRange> touches = {{target, bytes, true}, {source, bytes, false}};
  // What is mapped there may be host memory: then the bytes cross the link.
  const bool comes_from_host = memory_.place_of(touches[1]).is_host;
  const bool goes_to_host = memory_.place_of(touches[0]).is_host;
  CopyEngine& engine = comes_from_host == goes_to_host ? on_device_
                       : comes_from_host               ? to_device_
                                                       : to_host_;
  return push_copy(engine, touches, pointer(target), pointer(source), bytes, stream, false);
}

CUresult StreamTable::set_bytes(CUdeviceptr target, unsigned char value, size_t bytes,
                                CUstream stream) {
  if (!memory_.place_of({target, bytes, true}).is_accessible) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) return find(stream) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  return launch(
      stream, {{target, bytes, true}},
      [target, value, bytes] { memset(pointer(target), value, bytes); }, 0);
}

CUresult StreamTable::launch(CUstream stream, std::vector<DeviceRange> touches,
                             std::function<void()> kernel, uint64_t duration_ns) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  found->push([this, touches = std::move(touches), kernel = std::move(kernel), duration_ns](
                  SimulatedStream& worker, uint64_t begin_ns) {
    return perform(worker, touches, begin_ns, begin_ns + duration_ns, kernel, now_ns);
  });
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
  while (lettings_go_ < until && worker.pause_until(now_ns() + kPollNs)) {
    TENCACHE_CHECK(now_ns() - begin_ns < kHeldMaxNs,
                   "a stream was held for two minutes and nobody let it go");
  }
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

std::string StreamTable::leaks() const {
  MutexLock lock(mutex_);
  std::string text;
  const auto add = [&text](const char* what, const void* handle) {
    char line[64];
    snprintf(line, sizeof(line), "%s %p\n", what, handle);
    text += line;
  };
  for (const auto& [handle, stream] : streams_) {
    if (handle != nullptr) add("stream", handle);
  }
  for (const auto& [handle, event] : events_) add("event", handle);
  return text;
}

}  // namespace tencache
