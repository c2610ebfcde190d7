// SPDX-License-Identifier: Apache-2.0
//
// MoveRate: the rate is unknown until enough has moved, gives the newest moves the most weight, and
// is not misled by a process that was stopped in the middle of a move.
#include "engine/move/move_rate.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace tencache {
namespace {

constexpr uint64_t kMoveBytes = 32 * kMiB;
constexpr uint64_t kSecond = 1'000'000'000;

TEST(MoveRateTest, IsUnknownUntilEnoughHasMoved) {
  MoveRate rate;
  EXPECT_EQ(rate.bytes_per_s(7), 7);
  rate.add(kMiB, kSecond);
  EXPECT_EQ(rate.bytes_per_s(7), 7);
  rate.add(31 * kMiB, 31 * kSecond);
  EXPECT_NEAR(rate.bytes_per_s(7), kMiB, 1);
  EXPECT_NEAR(rate.ns_per_byte(7), 1e9 / kMiB, 1);
}

TEST(MoveRateTest, AStopOfTheProcessDoesNotCount) {
  MoveRate rate;
  for (int count = 0; count < 4; ++count) rate.add(kMoveBytes, kSecond / 50);
  const double before = rate.bytes_per_s(0);
  rate.add(kMoveBytes, 7200 * kSecond);
  EXPECT_EQ(rate.bytes_per_s(0), before);
  rate.add(kMoveBytes, kSecond / 50);
  EXPECT_NEAR(rate.bytes_per_s(0), before, before / 100);
}

TEST(MoveRateTest, ALinkThatStaysSlowIsBelievedWithTheSecondMove) {
  MoveRate rate;
  for (int count = 0; count < 4; ++count) rate.add(kMoveBytes, kSecond / 50);
  const double before = rate.bytes_per_s(0);
  rate.add(kMoveBytes, 60 * kSecond);
  rate.add(kMoveBytes, 60 * kSecond);
  EXPECT_LT(rate.bytes_per_s(0), before / 50);
}

}  // namespace
}  // namespace tencache
