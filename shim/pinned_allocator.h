// SPDX-License-Identifier: Apache-2.0
//
// PinnedAllocator implements PyTorch's allocator of pinned host memory (pin_memory(), DataLoaders,
// non_blocking copies) over the core's. Sizes are exact, where PyTorch's own allocator rounds up to
// powers of two. The memory lies next to the GPU that is current when it is first used. One
// allocator serves all GPUs.
//
// Note [What pinned means]. Where the driver refuses to pin more, memory is pageable. is_pinned()
// says so, because PyTorch asks the driver (cudaPointerGetAttributes, which knows registered memory
// and every address in it). An error would stop programs that run, more slowly, without pinning:
// copies are right either way. The core warns once.
//
// Note [What was there before]. Memory that another allocator gave out still belongs to it. So we
// pass on to the previous allocator what concerns it: a stream that uses its memory, the end of a
// pool that began there, and requests to empty caches.
//
// Private pools are those of CUDA graphs. Memory that a capture allocated and its copies used stays
// unused until all users have released the pool. It is reused once the cache is emptied or memory
// runs out. Before that the device is waited for, because a replay may still use the memory.
//
// A DataPtr's context is the data pointer and its deleter is raw_deleter(), which takes no
// allocator argument, so only one PinnedAllocator is alive at a time. A context that PyTorch passes
// back may be another allocator's; the address decides. Memory goes back to the system only in
// empty_cache(), or where another size needs the room, because unpinning may stop the GPUs.
//
// Threads: any. mutex_ is held while the memory is opened and for bookkeeping; filters are called,
// and memory is allocated, without it.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "abi/tencache_pinned.h"
#include "cuda_allocator.h"
#include "cuda_calls.h"

namespace tencache::shim {

class PinnedAllocator final : public at::HostAllocator {
 public:
  /// Opens the memory next to a GPU. Returns null, with *error filled, on failure.
  using Opener = std::function<tencache_pinned*(int ordinal, tencache_error* error)>;
  using Filter = std::function<bool(c10::Stream)>;

  /// `previous` is the allocator installed before this one, or null.
  PinnedAllocator(const CudaCalls& calls, Opener open, at::HostAllocator* previous);
  /// Only tests destroy one: PyTorch keeps its allocator until the process ends. REQUIRES: no
  /// memory that it allocated is still in use.
  ~PinnedAllocator() override;

  // c10::Allocator
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* target, const void* source, size_t bytes) const override;

  // at::HostAllocator
  bool record_event(void* address, void* context, c10::Stream stream) override;
  void empty_cache() override;
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;
  void begin_allocate_to_pool(c10::MempoolId_t id, Filter filter) override;
  void end_allocate_to_pool(c10::MempoolId_t id) override;
  void release_pool(c10::MempoolId_t id) override;
#if TENCACHE_TORCH_SINCE(14)
  void record_history(bool enabled, c10::CachingDeviceAllocator::CreateContextFn context_recorder,
                      size_t entries_max, c10::CachingDeviceAllocator::RecordContext when,
                      bool clear_history) override;
  std::vector<at::HostSegmentInfo> get_segments() override;
  // is_history_enabled(), get_traces() and record_external_...() keep the interface's defaults:
  // there is no history.
#endif

 private:
  struct Pool {
    uint64_t number = 0;  // the core's
    c10::DeviceIndex device = 0;
    int user_count = 0;
    int allocating_count = 0;  // threads about to allocate in it
  };
  struct Route {
    c10::MempoolId_t id;
    std::shared_ptr<const Filter> filter;
  };

  static void delete_raw(void* address);
  tencache_pinned* pinned();
  tencache_pinned* open_slow();
  void* try_allocate(size_t bytes, tencache_error* error);
  std::optional<c10::MempoolId_t> routed_to();
  void* allocate_in_pool(const c10::MempoolId_t& id, size_t bytes, tencache_error* error);
  bool drop_released_pools();

  const CudaCalls calls_;
  const Opener open_;
  at::HostAllocator* const previous_;
  std::atomic<tencache_pinned*> pinned_{nullptr};  // written once, with mutex_ held
  std::atomic<size_t> route_count_{0};             // written with mutex_ held
  std::mutex mutex_;
  std::map<c10::MempoolId_t, Pool> pools_;  // guarded by mutex_
  std::vector<Route> routes_;               // guarded by mutex_; the latest is last
};

}  // namespace tencache::shim
