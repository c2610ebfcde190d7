// SPDX-License-Identifier: Apache-2.0
//
// CudaPools implements PyTorch's private pools (CUDA graphs, torch.cuda.MemPool) of one GPU over
// the pools of the core. PyTorch's id names a pool, and each user counts itself in. While
// allocations are routed to a pool, a filter says which streams are meant. A pool without users is
// released: once nothing in it is alive, its memory goes back when the cache is emptied or memory
// runs out. Before that the device is waited for, because graphs that were replayed on any stream
// may still use it. PyTorch's trees of CUDA graphs put a pool back to an earlier state.
//
// Threads: any. mutex_ is held for bookkeeping only; filters are called, and memory is allocated
// and given back, without it.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "abi/tencache_gpu.h"

namespace tencache::shim {

/// The part of a pool that was in use at one moment.
class CudaPoolState final : public c10::cuda::CUDACachingAllocator::AllocatorState {
 public:
  CudaPoolState(const c10::MempoolId_t& pool, tencache_gpu_pool_state* state)
      : pool_(pool), state_(state) {}
  const c10::MempoolId_t& pool() const { return pool_; }
  const tencache_gpu_pool_state* state() const { return state_.get(); }

 private:
  struct Delete {
    void operator()(tencache_gpu_pool_state* state) const { tencache_gpu_delete_pool_state(state); }
  };
  const c10::MempoolId_t pool_;
  const std::unique_ptr<tencache_gpu_pool_state, Delete> state_;
};

class CudaPools {
 public:
  using Id = c10::MempoolId_t;
  using Filter = std::function<bool(cudaStream_t)>;

  /// Adds a user; makes the pool if it is new.
  void add_user(tencache_gpu* gpu, const Id& id);
  /// Removes a user; throws if the pool has none.
  void remove_user(const Id& id);
  int user_count(const Id& id) const;

  /// Routes the streams that the filter accepts to the pool; the caller becomes its user.
  void begin(tencache_gpu* gpu, const Id& id, Filter filter);
  void end(const Id& id);
  /// Whether anything is routed to a pool. Costs one relaxed load.
  bool is_routing() const { return route_count_.load(std::memory_order_relaxed) > 0; }

  /// Allocates from the pool that this stream's allocations are routed to. Returns false if there
  /// is none. Otherwise returns true: *address is set, or it is null and *error is filled. Throws
  /// what a tracker of segments throws.
  bool allocate(tencache_gpu* gpu, size_t bytes, cudaStream_t stream, void** address,
                tencache_error* error);
  /// Call for every free; costs one relaxed load while no pool has an allocation.
  void note_free(void* address);

  /// The part of a pool that is in use now. REQUIRES: the pool has a user.
  std::shared_ptr<CudaPoolState> state_of(tencache_gpu* gpu, const Id& id) const;
  struct Restored {
    std::vector<void*> freed;
    std::vector<void*> allocated;  // an address may be in both
  };
  /// Does what tencache_gpu_restore_pool() does, and REQUIRES the same of the caller; throws if the
  /// pool has no user.
  Restored restore(tencache_gpu* gpu, const CudaPoolState& state);

  /// Gives back the memory of released pools in which nothing is alive: of all, or of the one with
  /// that id. Calls `await_device`, which may throw, once nothing more can be freed in them.
  /// Returns false, and calls nothing, if there is no such pool. Throws what a tracker throws, too.
  bool drop_released(tencache_gpu* gpu, const Id& only, const std::function<void()>& await_device);

  /// The pool's allocations that are alive.
  std::unordered_set<void*> alive_in(const Id& id) const;
  /// Returns PyTorch's id of a pool of the core, or {0, 0} if no pool has that number.
  Id id_of(uint64_t number) const;

 private:
  struct Pool {
    uint64_t number = 0;  // the core's
    int user_count = 0;
    int allocating_count = 0;  // threads about to allocate in it
    bool is_dropping = false;  // a thread gives back its free memory; new users wait
    std::unordered_set<void*> alive;
  };
  struct Route {
    Id id;
    std::shared_ptr<const Filter> filter;
  };

  using Released = std::vector<std::pair<Id, uint64_t>>;  // with the core's number

  // Whether the pool's memory may go. Memory that is freed in a pool while the device is waited for
  // may still be in use, so a pool with live memory stays as a whole.
  static bool is_over(const Pool& pool) {
    return pool.user_count == 0 && pool.allocating_count == 0 && pool.alive.empty();
  }
  // These six REQUIRE that mutex_ is held.
  Pool& pool(const Id& id);
  const Pool& pool(const Id& id) const;
  bool is_dropping(const Id& id) const;
  Released begin_drop(const Id& only);
  void note_alive(void* address, const Id& id);
  void forget(void* address);

  std::atomic<size_t> route_count_{0};  // this and the next: written with mutex_ held
  std::atomic<size_t> alive_count_{0};
  mutable std::mutex mutex_;
  std::condition_variable has_dropped_;
  std::map<Id, Pool> pools_;
  std::vector<Route> routes_;              // the latest is last
  std::unordered_map<void*, Id> pool_of_;  // for live allocations
};

}  // namespace tencache::shim
