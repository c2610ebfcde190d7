// SPDX-License-Identifier: Apache-2.0
//
// ByTick: some values for each tick, in one sequence. TensorsByTick: the tensors that something
// happens to at each tick, in order. PlanByTick: a plan's moves, laid out by tick. None of the
// three ever changes. Threads: any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "learn/plan.h"
#include "learn/trace.h"

namespace tencache {

template <typename Value>
class ByTick {
 public:
  ByTick() = default;
  /// `pairs` are of a tick and a value each; at() keeps their order within each tick.
  ByTick(Tick tick_count, const std::vector<std::pair<Tick, Value>>& pairs)
      : first_(tick_count + 1, 0) {
    for (const auto& [tick, value] : pairs) ++first_[tick + 1];
    for (size_t tick = 1; tick < first_.size(); ++tick) first_[tick] += first_[tick - 1];
    values_.resize(pairs.size());
    std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
    for (const auto& [tick, value] : pairs) values_[next[tick]++] = value;
  }
  std::span<const Value> at(Tick tick) const {
    return std::span(values_).subspan(first_[tick], first_[tick + 1] - first_[tick]);
  }
  /// Where a tick's values begin in the sequence.
  uint32_t begin(Tick tick) const { return first_[tick]; }
  uint32_t size() const { return static_cast<uint32_t>(values_.size()); }
  const Value& operator[](uint32_t place) const { return values_[place]; }

 private:
  std::vector<uint32_t> first_;  // where each tick begins in values_, and the end
  std::vector<Value> values_;
};

/// The values are the numbers of tensors.
using TensorsByTick = ByTick<uint32_t>;

struct PlanByTick {
  PlanByTick() = default;
  PlanByTick(const Plan& plan, Tick tick_count) {
    struct Return {
      Tick lead;  // from its fetch to its use
      Tick fetch_at;
      uint32_t tensor;
    };
    std::vector<std::pair<Tick, uint32_t>> evictions;
    std::vector<Return> returns;
    for (const PlannedMove& move : plan.moves) {
      evictions.emplace_back(move.evict_after, move.tensor);
      if (move.fetch_at == kNoTick) continue;
      returns.push_back(
          {(move.needed_at + tick_count - move.fetch_at) % tick_count, move.fetch_at, move.tensor});
    }
    std::ranges::stable_sort(returns, {}, &Return::lead);
    std::vector<std::pair<Tick, uint32_t>> fetches;
    fetches.reserve(returns.size());
    for (const Return& back : returns) fetches.emplace_back(back.fetch_at, back.tensor);
    evictions_after = TensorsByTick(tick_count, evictions);
    fetches_at = TensorsByTick(tick_count, fetches);
  }

  /// The tensors that leave after each tick. Those of one tick leave in the plan's order.
  TensorsByTick evictions_after;
  /// The tensors whose fetches may start at each tick. Of those of one tick, the tensor that is
  /// needed first goes first.
  TensorsByTick fetches_at;
};

}  // namespace tencache
