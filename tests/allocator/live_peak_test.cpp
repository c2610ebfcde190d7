// SPDX-License-Identifier: Apache-2.0
//
// LivePeak: which peak is remembered for how long.
#include "memory/live_peak.h"

#include <gtest/gtest.h>

namespace tencache {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

class LivePeakTest : public ::testing::Test {
 protected:
  LivePeakTest() { peak_.look_at_time(now_ns_, frees_); }

  void pass(uint64_t ns, uint64_t frees) {
    now_ns_ += ns;
    frees_ += frees;
    peak_.look_at_time(now_ns_, frees_);
  }

  uint64_t now_ns_ = 5 * kSecond;
  uint64_t frees_ = 100;
  LivePeak peak_{16};
};

TEST_F(LivePeakTest, TheLargestCounts) {
  peak_.note(100);
  peak_.note(300);
  peak_.note(200);
  EXPECT_EQ(peak_.recent_bytes(), 300u);
}

TEST_F(LivePeakTest, ASixteenthMoreIsAllowed) {
  peak_.note(1600);
  EXPECT_EQ(peak_.allowed_bytes(), 1700u);
}

TEST_F(LivePeakTest, APeakLastsForTheNextWindow) {
  peak_.note(300);
  pass(10 * kSecond, 4096);
  peak_.note(100);
  EXPECT_EQ(peak_.recent_bytes(), 300u);
  pass(10 * kSecond, 4096);
  EXPECT_EQ(peak_.recent_bytes(), 100u) << "two windows later it is forgotten";
  peak_.note(50);
  pass(10 * kSecond, 4096);
  EXPECT_EQ(peak_.recent_bytes(), 50u);
}

TEST_F(LivePeakTest, AWindowLastsForSomeTime) {
  peak_.note(300);
  for (int round = 0; round < 9; ++round) pass(kSecond, 100'000);
  pass(kSecond - 1, 100'000);
  peak_.note(100);
  pass(1, 0);  // the first window ends only now
  EXPECT_EQ(peak_.recent_bytes(), 300u);
}

TEST_F(LivePeakTest, AWindowLastsForSomeFrees) {
  peak_.note(300);
  pass(100 * kSecond, 4095);
  pass(100 * kSecond, 0);
  EXPECT_EQ(peak_.recent_bytes(), 300u) << "a slow step";
  pass(0, 1);
  pass(10 * kSecond, 4095);
  EXPECT_EQ(peak_.recent_bytes(), 300u);
  pass(0, 1);
  EXPECT_EQ(peak_.recent_bytes(), 0u);
}

}  // namespace
}  // namespace tencache
