// SPDX-License-Identifier: Apache-2.0
//
// UseOrder against a sorted set of pairs, at random; the seed is printed.
#include "learn/use_order.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "support/random.h"

namespace tencache {
namespace {

constexpr uint32_t kTensors = 20;
constexpr uint64_t kUsesMax = 300;

using Model = std::set<std::pair<uint64_t, uint32_t>>;

void expect_same(const UseOrder& uses, const Model& model, uint64_t after, uint64_t until) {
  ASSERT_EQ(uses.is_empty(), model.empty());
  if (model.empty()) return;
  EXPECT_EQ(uses.first(), model.begin()->second);
  EXPECT_EQ(uses.last(), model.rbegin()->second);
  std::vector<uint32_t> visited;
  uses.visit(after, until, [&](uint32_t tensor) { visited.push_back(tensor); });
  std::vector<uint32_t> expected;
  for (const auto& [use, tensor] : model) {
    if (use > after && use <= until) expected.push_back(tensor);
  }
  EXPECT_EQ(visited, expected);
}

TEST(UseOrderTest, AreThoseOfASortedSet) {
  Random random;
  for (int round = 0; round < 200 && !::testing::Test::HasFailure(); ++round) {
    UseOrder uses(kTensors);
    Model model;
    std::vector<std::optional<uint64_t>> use_of(kTensors);
    for (int step = 0; step < 100; ++step) {
      const auto tensor = static_cast<uint32_t>(random.between(0, kTensors - 1));
      std::optional<uint64_t>& use = use_of[tensor];
      if (use) {
        uses.erase(*use, tensor);
        model.erase({*use, tensor});
        use.reset();
      } else {
        // A tenth of the uses are 0, so some tensors have the same one.
        use = random.between(0, 9) * random.between(1, kUsesMax / 10);
        uses.insert(*use, tensor);
        model.emplace(*use, tensor);
      }
      expect_same(uses, model, random.between(0, kUsesMax), random.between(0, 2 * kUsesMax));
    }
  }
}

}  // namespace
}  // namespace tencache
