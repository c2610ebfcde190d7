// SPDX-License-Identifier: Apache-2.0
#include "learn/victim_order.h"

#include <algorithm>

#include "base/check.h"

namespace tencache {
namespace {

uint32_t count_uses(const std::vector<std::vector<Tick>>& uses) {
  size_t count = 0;
  for (const std::vector<Tick>& of_tensor : uses) count += of_tensor.size();
  return static_cast<uint32_t>(count);
}

}  // namespace

UsesByTick::UsesByTick(const std::vector<std::vector<Tick>>& uses, Tick tick_count, Victim rule)
    : is_ascending_(rule == Victim::kLeastRecentlyUsed),
      tensor_count_(static_cast<uint32_t>(uses.size())),
      row_(count_uses(uses)),
      row_begin_(tick_count + 1, 0) {
  // A counting sort: count the uses of each tick, find where they end, then put each use into the
  // next place downwards from there. So numbers ascend within a tick if tensors are walked in
  // descending order here.
  for (const std::vector<Tick>& of_tensor : uses) {
    for (const Tick tick : of_tensor) ++row_begin_[tick];
  }
  for (Tick tick = 0; tick < tick_count; ++tick) row_begin_[tick + 1] += row_begin_[tick];
  for (uint32_t walked = 0; walked < tensor_count_; ++walked) {
    const uint32_t tensor = is_ascending_ ? tensor_count_ - 1 - walked : walked;
    for (const Tick tick : uses[tensor]) row_[--row_begin_[tick]] = tensor;
  }
}

uint32_t UsesByTick::place_of(uint32_t tensor, Tick use) const {
  const auto begin = row_.begin() + row_begin_[use];
  const auto end = row_.begin() + row_begin_[use + 1];
  const auto place = std::lower_bound(begin, end, tensor, [&](uint32_t left, uint32_t right) {
    return is_ascending_ ? left < right : left > right;
  });
  TENCACHE_DCHECK(place != end && *place == tensor);
  return static_cast<uint32_t>(place - row_.begin());
}

std::optional<uint32_t> UsesByTick::first_of(const NumberSet& occupied, Tick now) const {
  if (is_ascending_) {
    const std::optional<uint32_t> place = occupied.at_or_after(row_begin_[now + 1]);
    return place ? place : occupied.at_or_after(0);
  }
  const std::optional<uint32_t> place = occupied.before(row_begin_[now]);
  return place ? place : occupied.before(row_begin_.back());
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
