// SPDX-License-Identifier: Apache-2.0
#include "learn/victim_order.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace tencache {

// Walks the tensors by ascending or by descending numbers, so that those of one tick stand in that
// order.
UsesByTick::UsesByTick(const std::vector<std::vector<Tick>>& uses, Tick tick_count, Victim rule)
    : is_ascending_(rule == Victim::kLeastRecentlyUsed),
      tensor_count_(static_cast<uint32_t>(uses.size())) {
  std::vector<std::pair<Tick, uint32_t>> row;
  for (uint32_t walked = 0; walked < tensor_count_; ++walked) {
    const uint32_t tensor = is_ascending_ ? walked : tensor_count_ - 1 - walked;
    for (const Tick tick : uses[tensor]) row.emplace_back(tick, tensor);
  }
  row_ = TensorsByTick(tick_count, row);
}

uint32_t UsesByTick::place_of(uint32_t tensor, Tick use) const {
  const std::span<const uint32_t> of_tick = row_.at(use);
  const auto place = std::lower_bound(
      of_tick.begin(), of_tick.end(), tensor,
      [&](uint32_t left, uint32_t right) { return is_ascending_ ? left < right : left > right; });
  TENCACHE_DCHECK(place != of_tick.end() && *place == tensor);
  return row_.begin(use) + static_cast<uint32_t>(place - of_tick.begin());
}

std::optional<uint32_t> UsesByTick::first_of(const NumberSet& occupied, Tick now) const {
  if (is_ascending_) {
    const std::optional<uint32_t> place = occupied.at_or_after(row_.begin(now + 1));
    return place ? place : occupied.at_or_after(0);
  }
  const std::optional<uint32_t> place = occupied.before(row_.begin(now));
  return place ? place : occupied.before(row_.size());
}

VictimOrder::VictimOrder(const UsesByTick& row)
    : row_(row),
      place_(row.tensor_count(), kNowhere),
      in_row_(row.size()),
      beside_(row.tensor_count()) {}

void VictimOrder::add(uint32_t tensor, Tick use) {
  if (use == kNoTick) {
    place_[tensor] = kBeside;
    beside_.insert(tensor);
  } else {
    add_at(tensor, row_.place_of(tensor, use));
  }
}

void VictimOrder::remove(uint32_t tensor) {
  const uint32_t place = place_[tensor];
  if (place == kNowhere) return;
  if (place == kBeside) {
    beside_.erase(tensor);
  } else {
    in_row_.erase(place);
  }
  place_[tensor] = kNowhere;
}

std::optional<uint32_t> VictimOrder::first(Tick now) const {
  if (const auto tensor = beside_.at_or_after(0)) return tensor;
  const std::optional<uint32_t> place = row_.first_of(in_row_, now);
  if (!place) return std::nullopt;
  return row_.tensor_at(*place);
}

}  // namespace tencache
