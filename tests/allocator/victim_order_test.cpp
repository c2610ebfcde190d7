// SPDX-License-Identifier: Apache-2.0
//
// VictimOrder against a walk through all tensors with a score for each, on random uses; at each
// tick a random part of the tensors could leave. The underlying set of numbers is compared with
// std::set.
#include "learn/victim_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/random.h"

namespace tencache {
namespace {

TEST(NumberSetTest, FindsTheNearestMember) {
  Random random;
  for (int round = 0; round < 200; ++round) {
    const uint32_t size =
        static_cast<uint32_t>(random.between(1, random.chance(0.5) ? 300 : 20000));
    NumberSet numbers(size);
    std::set<uint32_t> model;
    for (int step = 0; step < 100; ++step) {
      const uint32_t number = static_cast<uint32_t>(random.between(0, size - 1));
      if (random.chance(0.4)) {
        numbers.insert(number);
        model.insert(number);
      } else {
        numbers.erase(number);
        model.erase(number);
      }
      const uint32_t from = static_cast<uint32_t>(random.between(0, size));
      const auto after = model.lower_bound(from);
      const auto expected_after = after == model.end() ? std::nullopt : std::optional(*after);
      const auto expected_before =
          after == model.begin() ? std::nullopt : std::optional(*std::prev(after));
      ASSERT_EQ(numbers.at_or_after(from), expected_after) << "from " << from << " of " << size;
      ASSERT_EQ(numbers.before(from), expected_before) << "before " << from << " of " << size;
    }
  }
}

/// The reference, which looks at every tensor. Of those with the highest score, the one with the
/// lowest number leaves.
class Walk {
 public:
  Walk(size_t tensor_count, Tick tick_count, Victim rule)
      : tick_count_(tick_count), rule_(rule), uses_(tensor_count) {}

  void add(uint32_t tensor, Tick use) { uses_[tensor] = use; }
  void remove(uint32_t tensor) { uses_[tensor].reset(); }
  bool has(uint32_t tensor) const { return uses_[tensor].has_value(); }

  std::optional<uint32_t> first(Tick now) const {
    std::optional<uint32_t> best;
    uint64_t best_score = 0;
    for (uint32_t tensor = 0; tensor < uses_.size(); ++tensor) {
      if (!uses_[tensor]) continue;
      const uint64_t score = ticks_between(now, *uses_[tensor]);
      if (!best || score > best_score) {
        best = tensor;
        best_score = score;
      }
    }
    return best;
  }

 private:
  uint64_t ticks_between(Tick now, Tick use) const {
    if (use == kNoTick) return uint64_t{2} * tick_count_;
    const Tick ticks =
        rule_ == Victim::kFarthestNextUse ? use + tick_count_ - now : now + tick_count_ - use;
    return ticks % tick_count_;
  }

  const Tick tick_count_;
  const Victim rule_;
  std::vector<std::optional<Tick>> uses_;
};

std::vector<std::vector<Tick>> random_uses(Random& random, size_t tensor_count, Tick tick_count) {
  std::vector<std::vector<Tick>> uses(tensor_count);
  for (std::vector<Tick>& of_tensor : uses) {
    const double probability = random.chance(0.5) ? 0.1 : 0.5;
    for (Tick tick = 0; tick < tick_count; ++tick) {
      if (random.chance(probability)) of_tensor.push_back(tick);
    }
  }
  return uses;
}

TEST(VictimOrderTest, ChoosesWhomAWalkThroughAllChooses) {
  Random random;
  for (int round = 0; round < 1000; ++round) {
    const Tick ticks = static_cast<Tick>(random.between(1, 20));
    const size_t tensors = random.between(1, 12);
    const auto uses = random_uses(random, tensors, ticks);
    const Victim rule = random.chance(0.5) ? Victim::kFarthestNextUse : Victim::kLeastRecentlyUsed;
    const UsesByTick row(uses, ticks, rule);
    VictimOrder order(row);
    Walk walk(tensors, ticks, rule);
    for (int step = 0; step < 50; ++step) {
      const uint32_t tensor = static_cast<uint32_t>(random.between(0, tensors - 1));
      if (walk.has(tensor) || random.chance(0.3)) {
        order.remove(tensor);
        walk.remove(tensor);
      } else {
        const std::vector<Tick>& of_tensor = uses[tensor];
        const bool has_use = !of_tensor.empty() && random.chance(0.9);
        const Tick use = has_use ? of_tensor[random.between(0, of_tensor.size() - 1)] : kNoTick;
        order.add(tensor, use);
        walk.add(tensor, use);
      }
      const Tick now = static_cast<Tick>(random.between(0, ticks - 1));
      ASSERT_EQ(order.first(now), walk.first(now)) << "round " << round << ", now " << now;
    }
  }
}

}  // namespace
}  // namespace tencache
