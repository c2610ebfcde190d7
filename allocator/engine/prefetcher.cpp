// SPDX-License-Identifier: Apache-2.0
#include "engine/prefetcher.h"

#include <chrono>
#include <utility>

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
    is_called_off_ = true;  // it would be the next to be dropped
  }
  changed_.notify_one();
}

void Prefetcher::forget() {
  MutexLock lock(mutex_);
  orders_.clear();
  is_called_off_ = true;
}

bool Prefetcher::has_orders() const {
  MutexLock lock(mutex_);
  return is_at_work_ || !orders_.empty();
}

void Prefetcher::on_room() {
  MutexLock lock(mutex_);
  if (!orders_.empty()) changed_.notify_one();
}

std::optional<Order> Prefetcher::take() {
  if (migrations_.is_demanded()) return std::nullopt;
  MutexLock lock(mutex_);
  if (is_stopping_ || orders_.empty()) return std::nullopt;
  Order order = std::move(orders_.front());
  orders_.pop_front();
  is_called_off_ = false;
  return order;
}

void Prefetcher::put_back(const Order& order) {
  MutexLock lock(mutex_);
  if (!is_called_off_) orders_.push_front(order);
}

void Prefetcher::work() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (!is_stopping_ && orders_.empty()) changed_.wait(mutex_);
      while (!is_stopping_ && migrations_.is_demanded()) changed_.wait_for(mutex_, kDemandPoll);
      if (is_stopping_) return;
      is_at_work_ = true;
    }
    const uint64_t lacking_bytes = migrations_.prefetch(*this);
    const bool has_dropped = lacking_bytes > 0 && heap_.drop_idle_cached(lacking_bytes) > 0;
    MutexLock lock(mutex_);
    is_at_work_ = false;
    const bool is_short = lacking_bytes > 0 && !has_dropped && !orders_.empty();
    if (is_short && !is_stopping_) changed_.wait_for(mutex_, kRoomPoll);
  }
}

}  // namespace tencache
