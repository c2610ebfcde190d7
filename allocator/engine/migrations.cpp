// SPDX-License-Identifier: Apache-2.0
#include "engine/migrations.h"

#include <vector>

#include "base/check.h"

namespace tencache {

void MigrationGate::enter() {
  MutexLock lock(mutex_);
  while (is_closed_) changed_.wait(mutex_);
  ++permit_count_;
}

void MigrationGate::leave() {
  MutexLock lock(mutex_);
  TENCACHE_DCHECK(permit_count_ > 0);
  if (--permit_count_ == 0) changed_.notify_all();
}

void MigrationGate::close() {
  MutexLock lock(mutex_);
  while (is_closed_) changed_.wait(mutex_);  // another thread forks
  is_closed_ = true;
  while (permit_count_ > 0) changed_.wait(mutex_);
}

void MigrationGate::reopen() {
  MutexLock lock(mutex_);
  is_closed_ = false;
  changed_.notify_all();
}

void Migrations::wait_while_sealing(const Extent& extent) {
  for (uint64_t word = extent.load(); Extent::state_of(word) == ExtentState::kSealing;
       word = extent.load()) {
    extent.wait_while(word);
  }
}

EvictionResult Migrations::evict_ordered(std::span<const Order> orders) {
  std::vector<Extent*> extents;
  extents.reserve(orders.size());
  for (const Order& order : orders) extents.push_back(order.extent);
  return evict(extents);
}

}  // namespace tencache
