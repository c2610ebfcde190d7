// SPDX-License-Identifier: Apache-2.0
#include "cuda_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cuda_errors.h"
#include "cuda_settings.h"

namespace tencache::shim {
namespace {

constexpr size_t kExabyte = size_t{1} << 60;

std::atomic<CudaAllocator*> g_allocator{nullptr};

}  // namespace

CudaAllocator::CudaAllocator(const CudaCalls& calls, Opener open)
    : calls_(calls), open_(std::move(open)) {
  for (size_t ordinal = 0; ordinal < devices_.size(); ++ordinal) {
    devices_[ordinal].index = static_cast<c10::DeviceIndex>(ordinal);
    devices_[ordinal].allocator = this;
  }
  CudaAllocator* none = nullptr;
  TORCH_CHECK(g_allocator.compare_exchange_strong(none, this),
              "tencache already has a CUDA allocator in this process.");
}

CudaAllocator::~CudaAllocator() {
  g_allocator.store(nullptr);
  for (Device& device : devices_) {
    tencache_gpu* const gpu = device.gpu.load();
    if (gpu == nullptr) continue;
    device.pools.drop_released(gpu, {}, [] {});  // nobody uses their memory any more
    tencache_gpu_close(gpu);
  }
}

// Devices.

void CudaAllocator::init(int device_count) {
  TORCH_CHECK(device_count >= 0 && device_count <= C10_COMPILE_TIME_MAX_GPUS,
              "This PyTorch knows at most ", C10_COMPILE_TIME_MAX_GPUS, " GPUs, and there are ",
              device_count, ".");
  const double fraction = configured_memory_fraction();  // first, since it may throw
  if (device_count_.exchange(std::max(device_count, device_count_.load())) > 0) return;
  {
    const std::lock_guard lock(mutex_);
    for (Device& device : devices_) device.fraction = fraction;
  }
  const std::string ignored = ignored_settings();
  if (!ignored.empty()) {
    TORCH_WARN(ignored);
  }
}

bool CudaAllocator::initialized() { return device_count_.load() > 0; }

CudaAllocator::Device& CudaAllocator::device_of(c10::DeviceIndex index) {
  const int count = device_count_.load(std::memory_order_relaxed);
  TORCH_CHECK(index >= 0 && index < count, "Invalid device argument ", static_cast<int>(index),
              ": did you call init?");
  return devices_[static_cast<uint8_t>(index)];
}

tencache_gpu* CudaAllocator::gpu_of(c10::DeviceIndex index) {
  tencache_gpu* const gpu = device_of(index).gpu.load(std::memory_order_acquire);
  return gpu != nullptr ? gpu : open_slow(index);
}

tencache_gpu* CudaAllocator::open_slow(c10::DeviceIndex index) {
  Device& device = device_of(index);
  const std::lock_guard lock(mutex_);
  if (tencache_gpu* const gpu = device.gpu.load(std::memory_order_acquire)) return gpu;
  tencache_error error = {};
  tencache_gpu* const gpu = open_(index, device.fraction, &error);
  TORCH_CHECK(gpu != nullptr, "tencache cannot serve GPU ", static_cast<int>(index), ". ",
              error.message);
  device.arena = tencache_gpu_arena(gpu);
  tencache_gpu_observe(gpu, &note_core_event, &device);
  device.gpu.store(gpu, std::memory_order_release);
  return gpu;
}

// The device whose memory contains the address; null for memory that this allocator did not give
// out.
CudaAllocator::Device* CudaAllocator::find_device(const void* address) {
  const int count = device_count_.load(std::memory_order_relaxed);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Device& device = devices_[static_cast<size_t>(ordinal)];
    if (device.gpu.load(std::memory_order_acquire) == nullptr) continue;
    if (reinterpret_cast<uintptr_t>(address) - device.arena.base >= device.arena.bytes) continue;
    return &device;
  }
  return nullptr;
}

double CudaAllocator::getMemoryFraction(c10::DeviceIndex device) {
  const Device& of = device_of(device);
  const std::lock_guard lock(mutex_);
  return of.fraction;
}

void CudaAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  Device& of = device_of(device);
  const std::lock_guard lock(mutex_);
  tencache_gpu* const gpu = of.gpu.load();
  tencache_error error = {};
  const int code =
      gpu != nullptr ? tencache_gpu_set_fraction(gpu, fraction, &error) : int{TENCACHE_OK};
  TORCH_CHECK(code == TENCACHE_OK, error.message);
  of.fraction = fraction;
}

std::pair<size_t, size_t> CudaAllocator::getMemoryInfo(c10::DeviceIndex device) {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  tencache_error error = {};
  const int code = tencache_gpu_memory(gpu_of(device), &free_bytes, &total_bytes, &error);
  TORCH_CHECK(code == TENCACHE_OK, error.message);
  return {free_bytes, total_bytes};
}

// Allocation.

void CudaAllocator::delete_raw(void* address) {
  // Without an allocator, its memory is already gone.
  if (CudaAllocator* const allocator = g_allocator.load()) allocator->raw_delete(address);
}

c10::DeleterFnPtr CudaAllocator::raw_deleter() const { return &delete_raw; }

c10::DataPtr CudaAllocator::allocate(size_t bytes) {
  const c10::DeviceIndex device = calls_.current_device();
  void* const address = bytes == 0 ? nullptr : malloc(device, bytes, calls_.current_stream(device));
  return {address, address, &delete_raw, c10::Device(c10::DeviceType::CUDA, device)};
}

void* CudaAllocator::raw_alloc(size_t bytes) {
  if (bytes == 0) return nullptr;
  const c10::DeviceIndex device = calls_.current_device();
  return malloc(device, bytes, calls_.current_stream(device));
}

void* CudaAllocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return bytes == 0 ? nullptr : malloc(calls_.current_device(), bytes, stream);
}

void* CudaAllocator::allocate_on(c10::DeviceIndex device, size_t bytes, cudaStream_t stream) {
  return bytes == 0 ? nullptr : malloc(device, bytes, stream);
}

void* CudaAllocator::malloc(c10::DeviceIndex index, size_t bytes, cudaStream_t stream) {
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < kExabyte,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  gpu_of(index);  // opens the GPU at its first use
  void* const address = history_.is_on() ? malloc_recorded(index, bytes, stream)
                                         : malloc_unrecorded(index, bytes, stream);
  const c10::impl::PyInterpreter* const trace = c10::impl::GPUTrace::get_trace();
  if (trace != nullptr) [[unlikely]] {
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
  }
  if (c10::memoryProfilingEnabled()) [[unlikely]] {
    tencache_gpu_block block = {};
    tencache_gpu_find(gpu_of(index), address, &block, nullptr);
    report_use(index, address, static_cast<int64_t>(block.bytes));
  }
  return address;
}

void* CudaAllocator::malloc_unrecorded(c10::DeviceIndex index, size_t bytes, cudaStream_t stream) {
  tencache_error error;
  void* const address = try_malloc(device_of(index), bytes, stream, &error);
  if (address != nullptr) [[likely]] {
    return address;
  }
  return malloc_slow(index, bytes, stream, &error);
}

void* CudaAllocator::malloc_recorded(c10::DeviceIndex index, size_t bytes, cudaStream_t stream) {
  const CudaHistory::Request request = {stream, {0, 0}, history_.gather(CudaHistory::When::STATE)};
  const CudaHistory::Scope scope(request);
  void* const address = malloc_unrecorded(index, bytes, stream);
  note_allocation(address, request);
  return address;
}

void CudaAllocator::note_allocation(const void* address, CudaHistory::Request request) {
  tencache_gpu_block block = {};
  if (const Device* const device = find_recorded(address, &block, &request)) {
    history_.note_allocation(device->index, block, request);
  }
}

// Finds the allocation that contains the address, the request that made it, and their device; null
// if there is none.
const CudaAllocator::Device* CudaAllocator::find_recorded(const void* address,
                                                          tencache_gpu_block* block,
                                                          CudaHistory::Request* request) {
  const Device* const device = find_device(address);
  if (device == nullptr) return nullptr;
  tencache_gpu_segment segment = {};
  const tencache_gpu* const gpu = device->gpu.load(std::memory_order_acquire);
  if (tencache_gpu_find(gpu, address, block, &segment) == 0) return nullptr;
  request->stream = segment.stream;
  request->pool = device->pools.id_of(segment.pool);
  return device;
}

void CudaAllocator::note_free(const void* address) {
  CudaHistory::Request request = {nullptr, {0, 0}, history_.gather(CudaHistory::When::ALL)};
  tencache_gpu_block block = {};
  if (const Device* const device = find_recorded(address, &block, &request)) {
    history_.note_free(device->index, block, request);
  }
}

void CudaAllocator::note_core_event(void* device, int event, uintptr_t address, uint64_t bytes) {
  const auto* const of = static_cast<const Device*>(device);
  of->allocator->history_.note_core_event(of->index, event, address, bytes);
  of->allocator->trackers_.note_core_event(of->index, event, address, bytes);
}

// Returns null, with *error filled, on failure.
void* CudaAllocator::try_malloc(Device& device, size_t bytes, cudaStream_t stream,
                                tencache_error* error) {
  tencache_gpu* const gpu = device.gpu.load(std::memory_order_acquire);
  void* address = nullptr;
  if (device.pools.is_routing() && device.pools.allocate(gpu, bytes, stream, &address, error))
      [[unlikely]] {
    return address;
  }
  return tencache_gpu_allocate(gpu, bytes, stream, error);
}

void* CudaAllocator::malloc_slow(c10::DeviceIndex index, size_t bytes, cudaStream_t stream,
                                 tencache_error* error) {
  TORCH_CHECK(error->code == TENCACHE_OUT_OF_MEMORY || error->code == TENCACHE_NO_SPACE,
              error->message);
  Device& device = device_of(index);
  device.retry_count.fetch_add(1, std::memory_order_relaxed);
  device.flush_count.fetch_add(1, std::memory_order_relaxed);
  const bool has_more = free_more(index);
  if (tencache_gpu_empty_cache(device.gpu.load(std::memory_order_acquire)) > 0 || has_more) {
    if (void* const address = try_malloc(device, bytes, stream, error)) return address;
  }
  fail(index, bytes, *error);
}

// Frees memory that the core cannot know to be free: pools of graphs that are gone, and what others
// said they could give up. Returns whether there was any.
bool CudaAllocator::free_more(c10::DeviceIndex index) {
  bool freed = drop_released_pools(index, {});
  for (const std::string& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  }
  return freed;
}

void CudaAllocator::fail(c10::DeviceIndex index, size_t bytes, const tencache_error& error) {
  Device& device = device_of(index);
  device.out_of_memory_count.fetch_add(1, std::memory_order_relaxed);
  const CudaMemoryState state = cuda_memory_state(device.gpu.load());
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), state.stats.all.bytes.current,
                                   state.stats.all.device_bytes.current,
                                   c10::Device(c10::DeviceType::CUDA, index));
  history_.note_out_of_memory(index, state.free_bytes, bytes);
  std::vector<cuda_api::OutOfMemoryObserver> observers;
  {
    const std::lock_guard lock(mutex_);
    observers = observers_;
  }
  for (const cuda_api::OutOfMemoryObserver& observer : observers) {
    observer(index, bytes, state.total_bytes, state.free_bytes);
  }
  throw_cuda_out_of_memory(index, bytes, state, error.message);
}

void CudaAllocator::report_use(c10::DeviceIndex index, void* address, int64_t bytes) {
  const tencache_gpu_use use = tencache_gpu_use_now(gpu_of(index));
  c10::reportMemoryUsageToProfiler(address, bytes, use.bytes, use.device_bytes,
                                   c10::Device(c10::DeviceType::CUDA, index));
}

void CudaAllocator::raw_delete(void* address) {
  if (address == nullptr) return;
  Device* const device = find_device(address);
  TORCH_CHECK(device != nullptr, "invalid device pointer: ", address);
  const c10::impl::PyInterpreter* const trace = c10::impl::GPUTrace::get_trace();
  if (trace != nullptr) [[unlikely]] {
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
  }
  tencache_gpu* const gpu = device->gpu.load(std::memory_order_acquire);
  tencache_gpu_block block = {};
  const bool is_profiled = c10::memoryProfilingEnabled();
  if (is_profiled) [[unlikely]] {
    tencache_gpu_find(gpu, address, &block, nullptr);
  }
  if (history_.is_on()) [[unlikely]] {
    note_free(address);
  }
  device->pools.note_free(address);
  tencache_gpu_free(gpu, address);
  if (is_profiled) [[unlikely]] {
    report_use(device->index, address, -static_cast<int64_t>(block.bytes));
  }
}

void CudaAllocator::recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) {
  // Empty tensors have no memory, and other allocators' memory is not ours to keep.
  if (pointer.get() == nullptr || pointer.get_deleter() != &delete_raw) return;
  const Device* const device = find_device(pointer.get());
  TORCH_CHECK(device != nullptr, "invalid device pointer: ", pointer.get());
  if (stream.device_index() != device->index) {
    throw_unsupported("record_stream with a stream of another GPU",
                      "tencache tracks the use of memory only in streams of the GPU that holds it.",
                      "Copy the tensor to the GPU of that stream first.");
  }
  tencache_error error = {};
  const int code = tencache_gpu_record_stream(device->gpu.load(std::memory_order_acquire),
                                              pointer.get(), calls_.handle_of(stream), &error);
  TORCH_CHECK(code == TENCACHE_OK, error.message);
}

// Cache, copies, figures.

// Drops the pools that were released, and waits for the device only if there is one. Does nothing
// while allocations are routed to a pool: that may be a graph capture, which forbids waiting.
// Returns whether there was a pool to drop.
bool CudaAllocator::drop_released_pools(c10::DeviceIndex index, const c10::MempoolId_t& only) {
  Device& device = device_of(index);
  tencache_gpu* const gpu = device.gpu.load(std::memory_order_acquire);
  if (gpu == nullptr) return false;
  const bool is_routing =
      std::ranges::any_of(devices_, [](const Device& other) { return other.pools.is_routing(); });
  if (is_routing) return false;
  return device.pools.drop_released(gpu, only, [&] { calls_.synchronize(index); });
}

void CudaAllocator::emptyCache(c10::MempoolId_t pool) {
  const int count = device_count_.load();
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    empty_cache_of(static_cast<c10::DeviceIndex>(ordinal), pool);
  }
}

// Drops the pools that were released, and empties the common cache. That cache stays where one pool
// is named, as with PyTorch's allocator, and while allocations are routed to a pool: that may be a
// graph capture.
void CudaAllocator::empty_cache_of(c10::DeviceIndex index, const c10::MempoolId_t& pool) {
  CudaHistory::Request request;
  if (history_.is_on()) request.context = history_.gather(CudaHistory::When::ALL);
  const CudaHistory::Scope scope(request);
  const bool has_dropped = drop_released_pools(index, pool);
  Device& device = device_of(index);
  const bool is_common = pool == c10::MempoolId_t{} && !device.pools.is_routing();
  if (has_dropped || is_common) device.flush_count.fetch_add(1, std::memory_order_relaxed);
  tencache_gpu* const gpu = device.gpu.load(std::memory_order_acquire);
  if (gpu != nullptr && is_common) tencache_gpu_empty_cache(gpu);
}

void CudaAllocator::copy_data(void* target, const void* source, size_t bytes) const {
  calls_.copy(target, source, bytes);
}

// With peer access a plain copy works, because our memory is mapped for peers, too. Without it the
// driver stages the copy through the host.
cudaError_t CudaAllocator::memcpyAsync(void* target, int target_device, const void* source,
                                       int source_device, size_t bytes, cudaStream_t stream,
                                       bool has_peer_access) {
  if (target_device == source_device || has_peer_access)
    return calls_.copy_async(target, source, bytes, stream);
  return calls_.copy_peer_async(target, target_device, source, source_device, bytes, stream);
}

c10::CachingDeviceAllocator::DeviceStats CudaAllocator::getDeviceStats(c10::DeviceIndex device) {
  const Device& of = device_of(device);
  const tencache_gpu* const gpu = of.gpu.load(std::memory_order_acquire);
  DeviceStats stats = gpu != nullptr ? cuda_stats(gpu) : DeviceStats{};
  stats.num_alloc_retries = of.retry_count.load(std::memory_order_relaxed);
  stats.num_ooms = of.out_of_memory_count.load(std::memory_order_relaxed);
  stats.num_sync_all_streams = of.flush_count.load(std::memory_order_relaxed);
  stats.max_split_size = -1;  // any block may be split, as in PyTorch without a limit
  return stats;
}

void CudaAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  Device& of = device_of(device);
  for (auto* count : {&of.retry_count, &of.out_of_memory_count, &of.flush_count}) {
    count->store(0, std::memory_order_relaxed);
  }
  if (tencache_gpu* const gpu = of.gpu.load(std::memory_order_acquire)) {
    tencache_gpu_reset_totals(gpu);
  }
}

void CudaAllocator::resetPeakStats(c10::DeviceIndex device) {
  const Device& of = device_of(device);
  if (tencache_gpu* const gpu = of.gpu.load(std::memory_order_acquire))
    tencache_gpu_reset_peaks(gpu);
}

void CudaAllocator::cacheInfo(c10::DeviceIndex device, size_t* largest_bytes) {
  const CudaMemoryState state = cuda_memory_state(gpu_of(device));
  if (*largest_bytes == 0) *largest_bytes = state.free_bytes;
  for (const auto& segment : cuda_segments(gpu_of(device), device, {}, [](uint64_t number) {
         // Free memory of a private pool serves that pool alone.
         return c10::MempoolId_t{number, 0};
       })) {
    if (segment.owner_private_pool_id != c10::MempoolId_t{}) continue;
    for (const auto& block : segment.blocks) {
      if (!block.active) *largest_bytes = std::max(*largest_bytes, block.size);
    }
  }
}

void* CudaAllocator::getBaseAllocation(void* address, size_t* bytes) {
  const Device* const device = find_device(address);
  tencache_gpu_segment segment = {};
  const bool is_found =
      device != nullptr && tencache_gpu_find(device->gpu.load(), address, nullptr, &segment) != 0;
  TORCH_CHECK(is_found, "invalid device pointer: ", address);
  if (bytes != nullptr) *bytes = segment.bytes;
  return reinterpret_cast<void*>(segment.address);
}

cuda_api::SnapshotInfo CudaAllocator::snapshot(c10::MempoolId_t pool, bool include_traces) {
  cuda_api::SnapshotInfo info = {};
  const int count = device_count_.load();
  if (include_traces) {
    info.device_traces = history_.entries(static_cast<size_t>(count));
    info.external_annotations = history_.annotations();
  }
  // Except for the text of the settings, these are the values that PyTorch's allocator reports
  // without settings, which have no effect on them here.
  info.config_metadata.max_split_size = std::numeric_limits<size_t>::max();
  info.config_metadata.pinned_num_register_threads = 1;
  info.config_metadata.last_allocator_settings = c10::CachingAllocator::getAllocatorSettings();
  info.config_metadata.roundup_power2_divisions.assign(16, 0);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    snapshot_of(static_cast<c10::DeviceIndex>(ordinal), pool, &info);
  }
  return info;
}

void CudaAllocator::snapshot_of(c10::DeviceIndex index, const c10::MempoolId_t& pool,
                                cuda_api::SnapshotInfo* info) {
  const Device& device = device_of(index);
  const tencache_gpu* const gpu = device.gpu.load(std::memory_order_acquire);
  if (gpu == nullptr) return;
  size_t active_bytes = 0;
  for (SegmentInfo& segment : cuda_segments(
           gpu, index, pool, [&](uint64_t number) { return device.pools.id_of(number); })) {
    active_bytes += segment.active_size;
    if (history_.is_on()) {
      segment.context_when_allocated = history_.context_of_segment(segment.address);
      size_t address = segment.address;
      for (auto& block : segment.blocks) {
        if (block.active) block.context_when_allocated = history_.context_of_block(address);
        address += block.size;
      }
    }
    info->segments.push_back(std::move(segment));
  }
  history_.note_snapshot(index, active_bytes);
}

std::vector<cuda_api::StreamSegmentSize> CudaAllocator::getExpandableSegmentSizes(
    c10::DeviceIndex device) {
  device_of(device);
  return {};  // no segment expands
}

}  // namespace tencache::shim
