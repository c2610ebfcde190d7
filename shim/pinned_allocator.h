// SPDX-License-Identifier: Apache-2.0
//
// PinnedAllocator: PyTorch's allocator of pinned host memory (pin_memory(), DataLoaders, copies of
// non_blocking) over the core's: sizes are exact, where PyTorch's own one rounds up to powers of
// two, and the memory lies next to the GPU that is current when it is first used. One for all GPUs.
//
// Note [What pinned means]. Where the driver refuses to pin more, memory is pageable and is_pinned
// says so, because PyTorch asks the driver (cudaPointerGetAttributes, which knows registered memory
// and every address in it). An error would stop programs that run, more slowly, without: copies are
// right either way. The core warns once.
//
// Note [What was there before]. Memory that another allocator gave out is still its own. So the
// allocator that was installed before is passed on what concerns it: a stream that uses its memory,
// the end of a pool that began there, and the wish to empty caches.
//
// Private pools are those of CUDA graphs. What a graph's capture allocated and copies used is used
// again only when the pool was released by all, the cache is emptied or memory runs out, and the
// device was waited for, because a replay may still use it.
//
// A DataPtr's context is the data pointer and its deleter is raw_deleter(), which has no argument
// for the allocator: there is one alive at a time. A context that PyTorch passes back may be
// another's; the address decides. Only empty_cache() gives memory back to the system: to unpin may
// stop the GPUs.
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
  /// Opens the memory next to a GPU; null with *error filled.
  using Opener = std::function<tencache_pinned*(int ordinal, tencache_error* error)>;
  using Filter = std::function<bool(c10::Stream)>;

  /// `previous` is the allocator that was installed so far, or null.
  PinnedAllocator(const CudaCalls& calls, Opener open, at::HostAllocator* previous);
  /// For tests: PyTorch keeps its allocator until the process ends. REQUIRES: nothing that was
  /// allocated is used any more.
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
#if TENCACHE_TORCH_SINCE(15)
  void record_history(bool enabled, c10::CachingDeviceAllocator::CreateContextFn context_recorder,
                      size_t entries_max, c10::CachingDeviceAllocator::RecordContext when,
                      bool clear_history) override;
  std::vector<at::HostSegmentInfo> get_segments() override;
  // is_history_enabled(), get_traces() and record_external_...() are the interface's own: there is
  // no history.
#endif

 private:
  struct Pool {
    uint64_t number = 0;  // of the core
    c10::DeviceIndex device = 0;
    int user_count = 0;
    int allocating_count = 0;  // threads that are about to allocate in it
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
  std::vector<Route> routes_;               // guarded by mutex_; began last, last
};

}  // namespace tencache::shim
