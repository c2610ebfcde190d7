// SPDX-License-Identifier: Apache-2.0
//
// timestamp(), which each processor reads in its own way: it follows the clock, in all threads. No
// test measures anything: each waits until the clock has moved on.
#include "base/clock.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>

namespace tencache {
namespace {

void wait_for_the_clock(uint64_t ns) {
  const uint64_t begin_ns = now_ns();
  while (now_ns() - begin_ns < ns) {
  }
}

TEST(ClockTest, ATimestampIsLaterWhenTheClockIs) {
  for (int round = 0; round < 100; ++round) {
    const uint64_t before = timestamp();
    wait_for_the_clock(10'000);
    EXPECT_LT(before, timestamp());
  }
}

TEST(ClockTest, TimestampsOfThreadsCompare) {
  for (int round = 0; round < 20; ++round) {
    const uint64_t before = timestamp();
    uint64_t between = 0;
    std::thread other([&between] {
      wait_for_the_clock(10'000);
      between = timestamp();
      wait_for_the_clock(10'000);
    });
    other.join();
    EXPECT_LT(before, between);
    EXPECT_LT(between, timestamp());
  }
}

TEST(ClockTest, ALineKeepsTheOrderOfTimestamps) {
  const TimestampConverter converter;
  const uint64_t first = timestamp();
  wait_for_the_clock(1'000'000);
  const uint64_t second = timestamp();
  const TimestampLine line = converter.line();
  EXPECT_LT(line.ns_since_start(first), line.ns_since_start(second));
  EXPECT_LE(line.ns_since_start(second), line.ns_since_start(timestamp()));
  EXPECT_EQ(line.ns_since_start(line.start - 1), 0u);
}

}  // namespace
}  // namespace tencache
