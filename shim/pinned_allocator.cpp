// SPDX-License-Identifier: Apache-2.0
#include "pinned_allocator.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <string>

#include "cuda_errors.h"
#include "cuda_view.h"

namespace tencache::shim {
namespace {

std::atomic<PinnedAllocator*> g_pinned_allocator{nullptr};

constexpr int64_t kNsPerUs = 1000;

std::string text_of(const c10::MempoolId_t& id) {
  return "(" + std::to_string(id.first) + ", " + std::to_string(id.second) + ")";
}

}  // namespace

PinnedAllocator::PinnedAllocator(const CudaCalls& calls, Opener open, at::HostAllocator* previous)
    : calls_(calls), open_(std::move(open)), previous_(previous) {
  PinnedAllocator* none = nullptr;
  TORCH_CHECK(g_pinned_allocator.compare_exchange_strong(none, this),
              "tencache already has an allocator of pinned memory in this process.");
}

PinnedAllocator::~PinnedAllocator() {
  g_pinned_allocator.store(nullptr);
  tencache_pinned* const pinned = pinned_.load();
  if (pinned == nullptr) return;
  drop_released_pools();
  tencache_pinned_close(pinned);
}

// Memory.

tencache_pinned* PinnedAllocator::pinned() {
  tencache_pinned* const pinned = pinned_.load(std::memory_order_acquire);
  return pinned != nullptr ? pinned : open_slow();
}

tencache_pinned* PinnedAllocator::open_slow() {
  const std::lock_guard lock(mutex_);
  if (tencache_pinned* const pinned = pinned_.load(std::memory_order_acquire)) return pinned;
  tencache_error error = {};
  tencache_pinned* const pinned = open_(calls_.current_device(), &error);
  TORCH_CHECK(pinned != nullptr, error.message);
  pinned_.store(pinned, std::memory_order_release);
  return pinned;
}

void PinnedAllocator::delete_raw(void* address) {
  // Once the allocator is gone, so is its memory: nothing is left to free.
  PinnedAllocator* const allocator = g_pinned_allocator.load();
  if (allocator == nullptr || address == nullptr) return;
  tencache_pinned_free(allocator->pinned_.load(std::memory_order_acquire), address);
}

c10::DeleterFnPtr PinnedAllocator::raw_deleter() const { return &delete_raw; }

c10::DataPtr PinnedAllocator::allocate(size_t bytes) {
  void* address = nullptr;
  if (bytes > 0) {
    tencache_error error = {};
    address = try_allocate(bytes, &error);
    // The core cannot know that pools of graphs are free once the graphs are gone.
    if (address == nullptr && drop_released_pools()) address = try_allocate(bytes, &error);
    TORCH_CHECK_WITH(OutOfMemoryError, address != nullptr || error.code != TENCACHE_OUT_OF_MEMORY,
                     error.message);
    TORCH_CHECK(address != nullptr, error.message);
  }
  return {address, address, &delete_raw, c10::Device(c10::DeviceType::CPU)};
}

// Returns null, with *error filled, on failure.
void* PinnedAllocator::try_allocate(size_t bytes, tencache_error* error) {
  tencache_pinned* const memory = pinned();
  if (route_count_.load(std::memory_order_relaxed) > 0) [[unlikely]] {
    if (const auto id = routed_to()) return allocate_in_pool(*id, bytes, error);
  }
  return tencache_pinned_allocate(memory, bytes, error);
}

void PinnedAllocator::copy_data(void* target, const void* source, size_t bytes) const {
  default_copy_data(target, source, bytes);
}

bool PinnedAllocator::record_event(void* address, void* context, c10::Stream stream) {
  tencache_pinned* const memory = pinned_.load(std::memory_order_acquire);
  if (memory != nullptr && address != nullptr) {
    const c10::cuda::CUDAStream cuda_stream(c10::cuda::CUDAStream::UNCHECKED, stream);
    tencache_error error = {};
    const int is_noted = tencache_pinned_record_stream(memory, address, stream.device_index(),
                                                       calls_.handle_of(cuda_stream), &error);
    TORCH_CHECK(error.code == TENCACHE_OK, error.message);
    if (is_noted != 0) return true;
  }
  return previous_ != nullptr && previous_->record_event(address, context, stream);
}

void PinnedAllocator::empty_cache() {
  drop_released_pools();
  tencache_pinned* const memory = pinned_.load(std::memory_order_acquire);
  if (memory != nullptr) tencache_pinned_trim(memory);
  if (previous_ != nullptr) previous_->empty_cache();
}

// Private pools.

void PinnedAllocator::begin_allocate_to_pool(c10::MempoolId_t id, Filter filter) {
  tencache_pinned* const memory = pinned();
  const c10::DeviceIndex device = calls_.current_device();
  const std::lock_guard lock(mutex_);
  const bool is_routed = std::ranges::any_of(routes_, [&](const Route& r) { return r.id == id; });
  TORCH_CHECK(!is_routed, "beginAllocateToPool: already recording to mempool_id ", text_of(id));
  Pool& pool = pools_[id];
  if (pool.number == 0) pool.number = tencache_pinned_make_pool(memory);
  pool.device = device;
  ++pool.user_count;
  routes_.push_back({id, std::make_shared<const Filter>(std::move(filter))});
  route_count_.store(routes_.size(), std::memory_order_relaxed);
}

void PinnedAllocator::end_allocate_to_pool(c10::MempoolId_t id) {
  {
    const std::lock_guard lock(mutex_);
    const auto route = std::ranges::find(routes_, id, &Route::id);
    if (route != routes_.end()) {
      routes_.erase(route);
      route_count_.store(routes_.size(), std::memory_order_relaxed);
      return;
    }
  }
  TORCH_CHECK(previous_ != nullptr, "endAllocatePool: not currently recording to mempool_id ",
              text_of(id));
  previous_->end_allocate_to_pool(id);
}

void PinnedAllocator::release_pool(c10::MempoolId_t id) {
  {
    const std::lock_guard lock(mutex_);
    const auto pool = pools_.find(id);
    if (pool != pools_.end() && pool->second.user_count > 0) {
      --pool->second.user_count;
      return;
    }
  }
  TORCH_CHECK(previous_ != nullptr, "There is no private pool ", text_of(id),
              " of pinned memory to release.");
  previous_->release_pool(id);
}

// Returns the pool that allocations on the current stream go to, and counts this thread as
// allocating in it. As in PyTorch's own allocator of pinned memory, the oldest route that accepts
// the stream wins.
std::optional<c10::MempoolId_t> PinnedAllocator::routed_to() {
  std::vector<Route> routes;
  {
    const std::lock_guard lock(mutex_);
    routes = routes_;
  }
  const c10::Stream stream = calls_.current_torch_stream(calls_.current_device());
  for (const Route& route : routes) {
    if (!(*route.filter)(stream)) continue;
    const std::lock_guard lock(mutex_);
    const auto pool = pools_.find(route.id);
    if (pool == pools_.end()) return std::nullopt;  // ended and dropped meanwhile
    ++pool->second.allocating_count;
    return route.id;
  }
  return std::nullopt;
}

void* PinnedAllocator::allocate_in_pool(const c10::MempoolId_t& id, size_t bytes,
                                        tencache_error* error) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = pools_.at(id).number;
  }
  tencache_pinned* const memory = pinned_.load(std::memory_order_acquire);
  void* const address = tencache_pinned_allocate_in_pool(memory, number, bytes, error);
  const std::lock_guard lock(mutex_);
  --pools_.at(id).allocating_count;
  return address;
}

// Waits for the devices of the pools without users and drops these pools. Does nothing while
// allocations are routed to a pool: that may be a graph capture, which forbids waiting for its
// device. Returns whether there was a pool to drop.
bool PinnedAllocator::drop_released_pools() {
  std::map<c10::MempoolId_t, Pool> released;
  {
    const std::lock_guard lock(mutex_);
    if (!routes_.empty()) return false;
    std::erase_if(pools_, [&](const auto& entry) {
      const Pool& pool = entry.second;
      if (pool.user_count > 0 || pool.allocating_count > 0) return false;
      released.insert(entry);
      return true;
    });
  }
  if (released.empty()) return false;
  // Where a device cannot be waited for, its pools and those after it stay.
  const auto put_back = c10::make_scope_exit([&] {
    const std::lock_guard lock(mutex_);
    pools_.merge(released);
  });
  tencache_pinned* const memory = pinned_.load(std::memory_order_acquire);
  while (!released.empty()) {
    const Pool& pool = released.begin()->second;
    calls_.synchronize(pool.device);
    tencache_pinned_drop_pool(memory, pool.number);
    released.erase(released.begin());
  }
  return true;
}

// Figures.

at::HostStats PinnedAllocator::get_stats() {
  at::HostStats stats;
  tencache_pinned* const memory = pinned_.load(std::memory_order_acquire);
  if (memory == nullptr) return stats;  // not used yet
  tencache_pinned_stats figures;
  tencache_pinned_get_stats(memory, &figures);
  stats.active_requests = cuda_stat(figures.allocations);
  stats.active_bytes = cuda_stat(figures.bytes);
  stats.allocations = cuda_stat(figures.mapped_count);
  stats.allocated_bytes = cuda_stat(figures.mapped_bytes);
  stats.host_alloc_time.total = static_cast<int64_t>(figures.pin_ns) / kNsPerUs;
  stats.host_alloc_time.max = static_cast<int64_t>(figures.pin_ns_max) / kNsPerUs;
  stats.host_alloc_time.min = static_cast<int64_t>(figures.pin_ns_min) / kNsPerUs;
  stats.host_alloc_time.count = static_cast<int64_t>(figures.mapped_count.added);
  stats.num_host_alloc = static_cast<int64_t>(figures.mapped_count.added);
  stats.num_host_free = static_cast<int64_t>(figures.mapped_count.removed);
  const size_t sizes = std::min<size_t>(stats.bucket_allocation.size(), TENCACHE_PINNED_SIZES);
  std::copy_n(figures.added_by_size, sizes, stats.bucket_allocation.begin());
  return stats;
}

void PinnedAllocator::reset_accumulated_stats() {
  tencache_pinned* const memory = pinned_.load(std::memory_order_acquire);
  if (memory != nullptr) tencache_pinned_reset_totals(memory);
}

void PinnedAllocator::reset_peak_stats() {
  tencache_pinned* const memory = pinned_.load(std::memory_order_acquire);
  if (memory != nullptr) tencache_pinned_reset_peaks(memory);
}

#if TENCACHE_TORCH_SINCE(14)
void PinnedAllocator::record_history(bool enabled, c10::CachingDeviceAllocator::CreateContextFn,
                                     size_t, c10::CachingDeviceAllocator::RecordContext, bool) {
  if (!enabled) return;  // nothing is ever recorded
  throw_unsupported("the recording of a history of pinned memory",
                    "only the present state of the memory is known.",
                    "Take a snapshot where you want to see it.");
}

// PyTorch's own allocator takes one segment from the driver per block, so each block is a segment
// here.
std::vector<at::HostSegmentInfo> PinnedAllocator::get_segments() {
  std::vector<at::HostSegmentInfo> segments;
  tencache_pinned* const memory = pinned_.load(std::memory_order_acquire);
  if (memory == nullptr) return segments;
  std::map<uint64_t, c10::MempoolId_t> ids;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, pool] : pools_) ids[pool.number] = id;
  }
  struct Visit {
    std::vector<at::HostSegmentInfo>& segments;
    const std::map<uint64_t, c10::MempoolId_t>& ids;
  } visit = {segments, ids};
  tencache_pinned_walk(
      memory,
      [](void* context, const tencache_pinned_block* block) {
        const auto& to = *static_cast<const Visit*>(context);
        at::HostSegmentInfo& segment = to.segments.emplace_back();
        segment.address = block->address;
        segment.size = block->bytes;
        segment.allocated = block->state == TENCACHE_BLOCK_ALLOCATED;
        segment.active = block->state != TENCACHE_BLOCK_INACTIVE;
        const auto id = to.ids.find(block->pool);
        if (id != to.ids.end()) segment.owner_private_pool_id = id->second;
      },
      &visit);
  return segments;
}
#endif

}  // namespace tencache::shim
