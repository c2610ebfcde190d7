// SPDX-License-Identifier: Apache-2.0
//
// RecyclingMap: an erased entry's node serves the next one, and a random run equals std::map's.
#include "memory/recycling_map.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>

#include "support/random.h"

namespace tencache {
namespace {

using Map = RecyclingMap<uint64_t, uint64_t>;

TEST(RecyclingMapTest, TheNextEntryTakesTheNodeOfTheErasedOne) {
  Map map;
  map[1] = 10;
  const uint64_t* const value = &map[2];
  map.erase(2);
  EXPECT_EQ(map.find(2), map.end());
  EXPECT_EQ(&map[3], value);
  EXPECT_EQ(map.find(3)->second, map[3]);
  EXPECT_NE(&map[4], value);
  EXPECT_EQ(map[1], 10U);
  EXPECT_EQ(map.size(), 3U);
}

TEST(RecyclingMapTest, AKnownKeyTakesNoNode) {
  Map map;
  map[1] = 10;
  const uint64_t* const value = &map[2];
  map.erase(map.find(2));
  EXPECT_EQ(map[1], 10U);
  EXPECT_EQ(&map[5], value);
  map.erase(7);
  EXPECT_EQ(map.size(), 2U);
}

TEST(RecyclingMapTest, EqualsAnOrdinaryMap) {
  Random random;
  Map map;
  std::map<uint64_t, uint64_t> model;
  for (uint64_t step = 0; step < 20'000; ++step) {
    const uint64_t key = random.between(0, 40);
    if (random.chance(0.5)) {
      map[key] = step;
      model[key] = step;
    } else {
      map.erase(key);
      model.erase(key);
    }
    ASSERT_EQ(map.size(), model.size());
    const uint64_t asked = random.between(0, 40);
    const auto at = map.lower_bound(asked);
    const auto expected = model.lower_bound(asked);
    ASSERT_EQ(at == map.end(), expected == model.end());
    if (at == map.end()) continue;
    ASSERT_EQ(at->first, expected->first);
    ASSERT_EQ(at->second, expected->second);
  }
}

}  // namespace
}  // namespace tencache
