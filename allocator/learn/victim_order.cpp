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

VictimOrder::VictimOrder(const std::vector<std::vector<Tick>>& uses, Tick tick_count, Victim rule)
    : is_ascending_(rule == Victim::kLeastRecentlyUsed),
      row_(count_uses(uses)),
      row_begin_(tick_count + 1, 0),
      place_(uses.size(), kNowhere),
      in_row_(static_cast<uint32_t>(row_.size())),
      beside_(static_cast<uint32_t>(uses.size())) {
  // A counting sort: count the uses of each tick, find where they end, then put each use into the
  // next place downwards from there. So numbers ascend within a tick if tensors are walked in
  // descending order here.
  for (const std::vector<Tick>& of_tensor : uses) {
    for (const Tick tick : of_tensor) ++row_begin_[tick];
  }
  for (Tick tick = 0; tick < tick_count; ++tick) row_begin_[tick + 1] += row_begin_[tick];
  const uint32_t tensor_count = static_cast<uint32_t>(uses.size());
  for (uint32_t walked = 0; walked < tensor_count; ++walked) {
    const uint32_t tensor = is_ascending_ ? tensor_count - 1 - walked : walked;
    for (const Tick tick : uses[tensor]) row_[--row_begin_[tick]] = tensor;
  }
}

void VictimOrder::add(uint32_t tensor, Tick use) {
  if (use == kNoTick) {
    place_[tensor] = kBeside;
    beside_.insert(tensor);
  } else {
    place_[tensor] = place_of(tensor, use);
    in_row_.insert(place_[tensor]);
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
  std::optional<uint32_t> place;
  if (is_ascending_) {
    place = in_row_.at_or_after(row_begin_[now + 1]);
    if (!place) place = in_row_.at_or_after(0);
  } else {
    place = in_row_.before(row_begin_[now]);
    if (!place) place = in_row_.before(row_begin_.back());
  }
  if (!place) return std::nullopt;
  return row_[*place];
}

uint32_t VictimOrder::place_of(uint32_t tensor, Tick use) const {
  const auto begin = row_.begin() + row_begin_[use];
  const auto end = row_.begin() + row_begin_[use + 1];
  const auto place = std::lower_bound(begin, end, tensor, [&](uint32_t left, uint32_t right) {
    return is_ascending_ ? left < right : left > right;
  });
  TENCACHE_DCHECK(place != end && *place == tensor);
  return static_cast<uint32_t>(place - row_.begin());
}

}  // namespace tencache
