// SPDX-License-Identifier: Apache-2.0
//
// Orders of fetches from a list, for tests that fetch ahead of use without a prefetcher.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "engine/migrations.h"
#include "engine/order.h"

namespace tencache {

class ListedOrders final : public OrderSource {
 public:
  explicit ListedOrders(std::span<const Order> orders) : orders_(orders.begin(), orders.end()) {}

  std::optional<Order> take() override {
    if (orders_.empty()) return std::nullopt;
    const Order order = orders_.front();
    orders_.pop_front();
    return order;
  }
  void put_back(const Order& order) override { orders_.push_front(order); }

  size_t left() const { return orders_.size(); }

 private:
  std::deque<Order> orders_;
};

/// Fetches as many of them as there is room for, and returns how many orders are done with;
/// `lacking_bytes` is what the next one needs and does not find.
inline size_t prefetch(Migrations& migrations, std::span<const Order> orders,
                       uint64_t* lacking_bytes = nullptr) {
  ListedOrders listed(orders);
  uint64_t lacking = 0;
  while (listed.left() > 0 && lacking == 0) lacking = migrations.prefetch(listed);
  if (lacking_bytes != nullptr) *lacking_bytes = lacking;
  return orders.size() - listed.left();
}

}  // namespace tencache
