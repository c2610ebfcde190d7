// SPDX-License-Identifier: Apache-2.0
#include "cuda_pools.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>

#include "cuda_trackers.h"

namespace tencache::shim {

CudaPools::Pool& CudaPools::pool(const Id& id) {
  const auto found = pools_.find(id);
  TORCH_CHECK(found != pools_.end(), "There is no private pool (", id.first, ", ", id.second,
              ") on this GPU.");
  return found->second;
}

const CudaPools::Pool& CudaPools::pool(const Id& id) const {
  return const_cast<CudaPools*>(this)->pool(id);
}

bool CudaPools::is_dropping(const Id& id) const {
  const auto found = pools_.find(id);
  return found != pools_.end() && found->second.is_dropping;
}

void CudaPools::add_user(tencache_gpu* gpu, const Id& id) {
  TORCH_CHECK(id != Id{}, "(0, 0) names the common memory, not a private pool.");
  const std::lock_guard lock(mutex_);
  // We wait by pthreads' own function, because gcc 12 gives condition_variable::wait() a symbol
  // that older versions of libstdc++ lack.
  while (is_dropping(id)) {
    pthread_cond_wait(has_dropped_.native_handle(), mutex_.native_handle());
  }
  Pool& used = pools_[id];
  if (used.number == 0) used.number = tencache_gpu_make_pool(gpu);
  ++used.user_count;
}

void CudaPools::remove_user(const Id& id) {
  const std::lock_guard lock(mutex_);
  Pool& used = pool(id);
  TORCH_CHECK(used.user_count > 0, "The private pool (", id.first, ", ", id.second,
              ") was released already.");
  --used.user_count;
}

int CudaPools::user_count(const Id& id) const {
  const std::lock_guard lock(mutex_);
  return pool(id).user_count;
}

void CudaPools::begin(tencache_gpu* gpu, const Id& id, Filter filter) {
  {
    const std::lock_guard lock(mutex_);
    const bool is_routed =
        std::ranges::any_of(routes_, [&](const Route& route) { return route.id == id; });
    TORCH_CHECK(!is_routed, "beginAllocateToPool: already recording to mempool_id");
  }
  add_user(gpu, id);
  const std::lock_guard lock(mutex_);
  routes_.push_back({id, std::make_shared<const Filter>(std::move(filter))});
  route_count_.store(routes_.size(), std::memory_order_relaxed);
}

void CudaPools::end(const Id& id) {
  const std::lock_guard lock(mutex_);
  const auto ended = std::ranges::find(routes_, id, &Route::id);
  TORCH_CHECK(ended != routes_.end(), "endAllocatePool: not currently recording to mempool_id");
  routes_.erase(ended);
  route_count_.store(routes_.size(), std::memory_order_relaxed);
}

bool CudaPools::allocate(tencache_gpu* gpu, size_t bytes, cudaStream_t stream, void** address,
                         tencache_error* error) {
  // The innermost route that accepts the stream wins.
  std::vector<Route> routes;
  {
    const std::lock_guard lock(mutex_);
    routes.assign(routes_.rbegin(), routes_.rend());
  }
  const auto wanted =
      std::ranges::find_if(routes, [&](const Route& route) { return (*route.filter)(stream); });
  if (wanted == routes.end()) return false;
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    Pool& chosen = pool(wanted->id);
    ++chosen.allocating_count;
    number = chosen.number;
  }
  // A call that takes no failure, such as free(), may have left one, which is not of this call.
  (void)SegmentTrackers::take_failure();
  {
    const SegmentTrackers::Scope scope(wanted->id);
    *address = tencache_gpu_allocate_in_pool(gpu, number, bytes, stream, error);
  }
  const std::exception_ptr failure = SegmentTrackers::take_failure();
  if (failure != nullptr && *address != nullptr) {
    tencache_gpu_free(gpu, std::exchange(*address, nullptr));
  }
  const std::lock_guard lock(mutex_);
  Pool& chosen = pool(wanted->id);
  --chosen.allocating_count;
  if (failure != nullptr) std::rethrow_exception(failure);
  if (*address != nullptr) note_alive(*address, wanted->id);
  return true;
}

void CudaPools::note_alive(void* address, const Id& id) {
  pool(id).alive.insert(address);
  pool_of_.emplace(address, id);
  alive_count_.store(pool_of_.size(), std::memory_order_relaxed);
}

void CudaPools::note_free(void* address) {
  if (alive_count_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(mutex_);
  forget(address);
}

void CudaPools::forget(void* address) {
  const auto gone = pool_of_.extract(address);
  if (gone.empty()) return;
  // If the core has dropped the pool meanwhile, nothing in it was alive.
  if (const auto of = pools_.find(gone.mapped()); of != pools_.end())
    of->second.alive.erase(address);
  alive_count_.store(pool_of_.size(), std::memory_order_relaxed);
}

std::shared_ptr<CudaPoolState> CudaPools::state_of(tencache_gpu* gpu, const Id& id) const {
  const std::lock_guard lock(mutex_);
  const Pool& of = pool(id);
  TORCH_CHECK(of.user_count > 0, "The private pool (", id.first, ", ", id.second,
              ") was released, so its memory may go at any time.");
  return std::make_shared<CudaPoolState>(id, tencache_gpu_pool_state_of(gpu, of.number));
}

CudaPools::Restored CudaPools::restore(tencache_gpu* gpu, const CudaPoolState& state) {
  const Id& id = state.pool();
  TORCH_CHECK(user_count(id) > 0, "The private pool (", id.first, ", ", id.second,
              ") was released, so it cannot be put back to an earlier state.");
  Restored restored;
  const auto note = [](void* context, int is_allocated, void* address) {
    auto* const to = static_cast<Restored*>(context);
    (is_allocated != 0 ? to->allocated : to->freed).push_back(address);
  };
  tencache_error error = {};
  const int code = tencache_gpu_restore_pool(gpu, state.state(), note, &restored, &error);
  TORCH_CHECK(code == TENCACHE_OK, "The private pool (", id.first, ", ", id.second,
              ") cannot be put back to an earlier state. ", error.message);
  const std::lock_guard lock(mutex_);
  for (void* address : restored.freed) forget(address);
  for (void* address : restored.allocated) note_alive(address, id);
  return restored;
}

CudaPools::Released CudaPools::begin_drop(const Id& only) {
  Released dropping;
  for (auto& [id, candidate] : pools_) {
    const bool is_meant = only == Id{} || id == only;
    if (!is_meant || candidate.is_dropping || !is_over(candidate)) continue;
    candidate.is_dropping = true;
    dropping.emplace_back(id, candidate.number);
  }
  return dropping;
}

bool CudaPools::drop_released(tencache_gpu* gpu, const Id& only,
                              const std::function<void()>& await_device) {
  Released dropping;
  {
    const std::lock_guard lock(mutex_);
    dropping = begin_drop(only);
  }
  if (dropping.empty()) return false;
  std::exception_ptr failure;
  try {
    await_device();
  } catch (...) {
    failure = std::current_exception();
  }
  (void)SegmentTrackers::take_failure();  // left by an earlier call, as in allocate()
  for (const auto& [id, number] : dropping) {
    const bool is_gone = failure == nullptr && tencache_gpu_drop_pool(gpu, number) != 0;
    if (failure == nullptr) failure = SegmentTrackers::take_failure();
    const std::lock_guard lock(mutex_);
    if (is_gone) {
      pools_.erase(id);
    } else {
      pool(id).is_dropping = false;
    }
  }
  has_dropped_.notify_all();
  if (failure != nullptr) std::rethrow_exception(failure);
  return true;
}

std::unordered_set<void*> CudaPools::alive_in(const Id& id) const {
  const std::lock_guard lock(mutex_);
  return pool(id).alive;
}

CudaPools::Id CudaPools::id_of(uint64_t number) const {
  if (number == 0) return {};
  const std::lock_guard lock(mutex_);
  for (const auto& [id, named] : pools_) {
    if (named.number == number) return id;
  }
  return {};
}

}  // namespace tencache::shim
