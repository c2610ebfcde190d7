// SPDX-License-Identifier: Apache-2.0
#include "engine/prefetcher.h"

#include <algorithm>
#include <chrono>

#include "base/service_thread.h"
#include "base/stats.h"
#include "base/units.h"

namespace tencache {
namespace {

// What has waited behind so many others is not worth fetching any more.
constexpr size_t kOrdersMax = 4096;
// Room also appears where nobody says so: the program frees. And an op's fetch ends unannounced.
constexpr std::chrono::microseconds kRoomPoll{500};
constexpr std::chrono::microseconds kDemandPoll{50};

}  // namespace

Prefetcher::~Prefetcher() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  if (worker_.joinable()) worker_.join();
}

void Prefetcher::start() {
  worker_ = start_service_thread("tencache-fetch", [this] { work(); });
}

void Prefetcher::order(std::span<const Order> fetches) {
  // Like a use: it calls off an eviction that is ordered or under way.
  for (const Order& order : fetches) {
    raise_to(order.extent->last_use_ticks, order.given_at_ticks);
  }
  MutexLock lock(mutex_);
  orders_.insert(orders_.end(), fetches.begin(), fetches.end());
  while (orders_.size() > kOrdersMax) {
    orders_.pop_front();
    ++generation_;  // the batch under way no longer stands at the front
  }
  changed_.notify_one();
}

void Prefetcher::forget() {
  MutexLock lock(mutex_);
  orders_.clear();
  ++generation_;
}

bool Prefetcher::has_orders() const {
  MutexLock lock(mutex_);
  return !orders_.empty();
}

void Prefetcher::on_room() {
  MutexLock lock(mutex_);
  if (!orders_.empty()) changed_.notify_one();
}

std::vector<Order> Prefetcher::next_batch() {
  std::vector<Order> batch;
  uint64_t bytes = 0;
  for (const Order& order : orders_) {
    batch.push_back(order);
    bytes += order.bytes;
    if (bytes >= migrations_.bytes_at_once()) break;
  }
  return batch;
}

void Prefetcher::work() {
  for (;;) {
    std::vector<Order> batch;
    uint64_t generation = 0;
    {
      MutexLock lock(mutex_);
      while (!is_stopping_ && orders_.empty()) changed_.wait(mutex_);
      while (!is_stopping_ && migrations_.is_demanded()) changed_.wait_for(mutex_, kDemandPoll);
      if (is_stopping_) return;
      batch = next_batch();
      generation = generation_;
    }
    uint64_t lacking_bytes = 0;
    const size_t done = migrations_.prefetch(batch, &lacking_bytes);
    const bool has_dropped = lacking_bytes > 0 && heap_.drop_idle_cached(lacking_bytes) > 0;
    MutexLock lock(mutex_);
    if (generation != generation_) continue;  // what was done is among what was forgotten
    orders_.erase(orders_.begin(), orders_.begin() + static_cast<std::ptrdiff_t>(done));
    if (lacking_bytes > 0 && !has_dropped && !is_stopping_) changed_.wait_for(mutex_, kRoomPoll);
  }
}

}  // namespace tencache
