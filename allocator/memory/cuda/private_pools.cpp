// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/private_pools.h"

namespace tencache {

uint64_t PrivatePools::make() {
  auto pool = std::make_shared<BlockPool>(numbers_, source_, use_);
  MutexLock lock(mutex_);
  pools_.emplace(++last_number_, std::move(pool));
  count_.store(pools_.size(), std::memory_order_relaxed);
  return last_number_;
}

PrivatePools::PoolPtr PrivatePools::find(uint64_t number) const {
  MutexLock lock(mutex_);
  const auto found = pools_.find(number);
  return found == pools_.end() ? nullptr : found->second;
}

PrivatePools::Dropped PrivatePools::drop(uint64_t number) {
  const PoolPtr pool = find(number);
  if (pool == nullptr) return {0, true};
  const uint64_t bytes = pool->trim(~uint64_t{0});
  if (pool->segment_bytes() > 0) return {bytes, false};
  MutexLock lock(mutex_);
  pools_.erase(number);
  count_.store(pools_.size(), std::memory_order_relaxed);
  return {bytes, true};
}

std::vector<std::pair<uint64_t, PrivatePools::PoolPtr>> PrivatePools::all() const {
  if (count_.load(std::memory_order_relaxed) == 0) return {};
  MutexLock lock(mutex_);
  return {pools_.begin(), pools_.end()};
}

uint64_t PrivatePools::segment_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [number, pool] : all()) bytes += pool->segment_bytes();
  return bytes;
}

}  // namespace tencache
