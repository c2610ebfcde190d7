// SPDX-License-Identifier: Apache-2.0
//
// The work that StreamTable puts into streams, except events: values, copies, memsets, kernels and
// host functions.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/racy_access.h"
#include "support/cuda/handles.h"
#include "support/cuda/stream_table.h"

namespace tencache {
namespace {

// How often a stream checks a value that it waits for.
constexpr uint64_t kValuePollNs = 20'000;

CUdeviceptr address_of(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

template <typename Value>
std::atomic_ref<Value> value_at(CUdeviceptr address) {
  return std::atomic_ref<Value>(*static_cast<Value*>(pointer(address)));
}

}  // namespace

bool StreamTable::is_value_place(const DeviceRange& range, int device) const {
  if (range.address % range.bytes != 0) return false;
  const SimulatedMemory::Place place = memory_.place_of(range, device);
  if (place.is_reserved) return place.is_accessible;
  return host_.is_registered(range, device);
}

CUresult StreamTable::wait_value(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                 unsigned flags) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != CU_STREAM_WAIT_VALUE_EQ && flags != CU_STREAM_WAIT_VALUE_GEQ) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const DeviceRange place = {address, sizeof(uint64_t), false};
  if (!is_value_place(place, found->device())) return CUDA_ERROR_INVALID_VALUE;
  const int device = found->device();
  const bool is_in_device_memory = memory_.place_of(place, device).is_reserved;
  return queue(*found, [=, this](SimulatedStream& worker, uint64_t begin_ns) {
    uint64_t access = 0;
    if (is_in_device_memory && (access = memory_.begin_access({&place, 1}, device)) == 0) {
      failure_.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
      return begin_ns;
    }
    const auto is_reached = [&] {
      if (!is_in_device_memory && !host_.is_registered(place, device)) {
        failure_.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
        return true;
      }
      const uint64_t present = value_at<uint64_t>(place.address).load(std::memory_order_acquire);
      return flags == CU_STREAM_WAIT_VALUE_EQ ? present == value
                                              : static_cast<int64_t>(present - value) >= 0;
    };
    bool has_waited = false;
    while (!is_reached() && worker.pause_until(now_ns() + kValuePollNs)) has_waited = true;
    if (access != 0) memory_.end_access(access);
    return has_waited ? now_ns() : begin_ns;
  });
}

template <typename Value>
CUresult StreamTable::push_value(CUstream stream, CUdeviceptr address, Value value,
                                 unsigned flags) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const DeviceRange place = {address, sizeof(Value), true};
  if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER || !is_value_place(place, found->device())) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int device = found->device();
  const bool is_in_device_memory = memory_.place_of(place, device).is_reserved;
  return queue(*found, [=, this](SimulatedStream& worker, uint64_t begin_ns) {
    const std::span<const DeviceRange> all(&place, 1);
    const auto none = all.first(0);
    return perform(
        worker,
        {is_in_device_memory ? all : none, is_in_device_memory ? none : all, device, device},
        begin_ns, begin_ns,
        [address, value] { value_at<Value>(address).store(value, std::memory_order_release); },
        thread_work_ns);
  });
}

CUresult StreamTable::write_value(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                  unsigned flags) {
  return push_value<uint64_t>(stream, address, value, flags);
}

CUresult StreamTable::write_value32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                    unsigned flags) {
  return push_value<uint32_t>(stream, address, value, flags);
}

CUresult StreamTable::launch_host_function(CUstream stream, CUhostFn function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return push_kernel(stream, {{}, [function, data] { function(data); }}, WorkKind::kOther);
}

// No graph can hold a callback, unlike a function of launch_host_function().
CUresult StreamTable::add_callback(CUstream stream, CUstreamCallback function, void* data,
                                   unsigned flags) {
  if (function == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = captures_.check_outside(*found); error != CUDA_SUCCESS) return error;
  return push_kernel(stream,
                     {{}, [stream, function, data] { function(stream, CUDA_SUCCESS, data); }},
                     WorkKind::kOther);
}

uint64_t StreamTable::perform(SimulatedStream& stream, const Uses& uses, uint64_t begin_ns,
                              uint64_t end_ns, const std::function<void()>& work, Clock clock,
                              const std::function<void()>& explain) {
  const uint64_t access = memory_.begin_access(uses.mapped, uses.device);
  if (access == 0) {
    if (explain) explain();
    failure_.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
    return begin_ns;
  }
  const auto work_if_registered = [&] {
    for (const DeviceRange& range : uses.registered) {
      if (host_.is_registered(range, uses.registered_for)) continue;
      return failure_.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    work();
  };
  if (works_first_ && end_ns > begin_ns) {
    end_ns = perform_first(stream, begin_ns, end_ns, work_if_registered);
    memory_.end_access(access);
    return end_ns;
  }
  uint64_t work_ns = 0;
  if (stream.pause_until(end_ns)) {
    const uint64_t started_ns = clock();
    work_if_registered();
    work_ns = clock() - started_ns;
  }
  memory_.end_access(access);
  // A work that takes longer than its time delays the stream by the difference.
  return std::max(end_ns, begin_ns + work_ns);
}

uint64_t StreamTable::perform_first(SimulatedStream& stream, uint64_t begin_ns, uint64_t end_ns,
                                    const std::function<void()>& work) {
  if (!stream.pause_until(begin_ns)) return begin_ns;
  const uint64_t started_ns = thread_work_ns();
  work();
  if (const uint64_t work_ns = thread_work_ns() - started_ns; work_ns > end_ns - begin_ns) {
    ++late_;
    end_ns = begin_ns + work_ns;
  }
  if (stream.pause_until(end_ns)) note_lag(now_ns() - end_ns);
  return end_ns;
}

void StreamTable::note_lag(uint64_t lag_ns) {
  uint64_t most_ns = lag_ns_;
  while (lag_ns > most_ns && !lag_ns_.compare_exchange_weak(most_ns, lag_ns)) {
  }
}

CUresult StreamTable::push_copy(const Copy& copy, CUstream stream) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<DeviceRange> mapped;
  std::vector<DeviceRange> registered;
  bool is_pageable = false;
  for (const auto& [end, is_host] : {std::pair(copy.target, copy.host == HostEnd::kTarget),
                                     std::pair(copy.source, copy.host == HostEnd::kSource)}) {
    const SimulatedMemory::Place place = memory_.place_of(end, kAnyDevice);
    if (!is_host || place.is_reserved) {
      // Mapped memory of a NUMA node is the host's, too; device memory is not.
      if (!place.is_accessible || (is_host && !place.is_host)) return CUDA_ERROR_INVALID_VALUE;
      mapped.push_back(end);
      continue;
    }
    const HostMemoryKind kind = host_.kind(pointer(end.address), end.bytes, found->device());
    if (kind == HostMemoryKind::kTorn) return CUDA_ERROR_INVALID_VALUE;
    if (kind == HostMemoryKind::kRegistered) registered.push_back(end);
    is_pageable |= kind == HostMemoryKind::kPageable;
  }
  const uint64_t bytes = copy.target.bytes;
  if (bytes == 0) return captures_.check_use(*found);
  const bool is_captured = captures_.is_capturing(*found);
  const void* source = pointer(copy.source.address);
  std::shared_ptr<std::vector<char>> staged;
  if (is_pageable && copy.host == HostEnd::kSource && !is_captured) {
    const char* const begin = static_cast<const char*>(source);
    staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    source = staged->data();
  }
  const auto move = [target = pointer(copy.target.address), source, staged, bytes,
                     is_racy = reads_may_race_ && copy.host == HostEnd::kTarget] {
    std::optional<RacyReads> racy;
    if (is_racy) racy.emplace();
    memmove(target, source, bytes);
  };
  const CUresult queued =
      queue(*found, [this, &engine = copy.engine, mapped = std::move(mapped),
                     registered = std::move(registered), move, bytes,
                     device = found->device()](SimulatedStream& worker, uint64_t begin_ns) {
        if (copies_let_through_.fetch_sub(1) <= 0) {
          wait_held(worker, copies_held_until_);
          begin_ns = std::max<uint64_t>(begin_ns, let_go_ns_);
        }
        return perform(worker, {mapped, registered, kAnyDevice, device}, begin_ns,
                       engine.take(begin_ns, bytes), move, thread_work_ns);
      });
  const bool is_awaited = is_pageable && staged == nullptr && !is_captured;
  return queued == CUDA_SUCCESS && is_awaited ? wait_for(*found) : queued;
}

CUresult StreamTable::copy_to_device(CUdeviceptr target, const void* source, size_t bytes,
                                     CUstream stream) {
  return push_copy(
      {to_device_, {target, bytes, true}, {address_of(source), bytes, false}, HostEnd::kSource},
      stream);
}

CUresult StreamTable::copy_to_host(void* target, CUdeviceptr source, size_t bytes,
                                   CUstream stream) {
  return push_copy(
      {to_host_, {address_of(target), bytes, true}, {source, bytes, false}, HostEnd::kTarget},
      stream);
}

CUresult StreamTable::copy_on_device(CUdeviceptr target, CUdeviceptr source, size_t bytes,
                                     CUstream stream) {
  const DeviceRange to = {target, bytes, true};
  const DeviceRange from = {source, bytes, false};
  // Host memory may be mapped there: then the bytes cross the link.
  const bool comes_from_host = memory_.place_of(from, kAnyDevice).is_host;
  const bool goes_to_host = memory_.place_of(to, kAnyDevice).is_host;
  CopyEngine& engine = comes_from_host == goes_to_host ? on_device_
                       : comes_from_host               ? to_device_
                                                       : to_host_;
  return push_copy({engine, to, from}, stream);
}

CUresult StreamTable::copy_on_host(void* target, const void* source, size_t bytes,
                                   CUstream stream) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto copy = [target, source, bytes] { memmove(target, source, bytes); };
  if (captures_.is_capturing(*found)) return push_kernel(stream, {{}, copy}, WorkKind::kOther);
  if (const CUresult error = captures_.check_use(*found); error != CUDA_SUCCESS) return error;
  const auto marker = std::make_shared<Marker>();
  push(*found, nullptr, marker);
  marker->wait();
  const CUresult result = failure_.result();
  if (result == CUDA_SUCCESS && bytes > 0) copy();
  return result;
}

template <typename Value>
CUresult StreamTable::fill(CUdeviceptr target, Value value, size_t count, CUstream stream) {
  const uint64_t bytes = count * sizeof(Value);
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (target % sizeof(Value) != 0 ||
      !memory_.place_of({target, bytes, true}, found->device()).is_accessible) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes == 0) return captures_.check_use(*found);
  const auto run = [target, value, count] {
    std::fill_n(static_cast<Value*>(pointer(target)), count, value);
  };
  return push_kernel(stream, {{{target, bytes, true}}, run}, WorkKind::kKernel);
}

CUresult StreamTable::set_bytes(CUdeviceptr target, unsigned char value, size_t bytes,
                                CUstream stream) {
  return fill(target, value, bytes, stream);
}

CUresult StreamTable::set_words(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
  return fill(target, value, count, stream);
}

CUresult StreamTable::launch(CUstream stream, Kernel kernel) {
  const StreamPointer found = find(stream);
  if (found == nullptr || found->device() != current_device()) return CUDA_ERROR_INVALID_HANDLE;
  return push_kernel(stream, std::move(kernel), WorkKind::kKernel);
}

CUresult StreamTable::push_kernel(CUstream stream, Kernel kernel, WorkKind kind) {
  const StreamPointer found = find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  auto work = [this, kernel = std::move(kernel), device = found->device()](SimulatedStream& worker,
                                                                           uint64_t begin_ns) {
    return perform(worker, {kernel.touches, kernel.registered, device, device}, begin_ns,
                   begin_ns + kernel.duration_ns, kernel.run, now_ns, kernel.explain);
  };
  return queue(*found, std::move(work), kind);
}

}  // namespace tencache
