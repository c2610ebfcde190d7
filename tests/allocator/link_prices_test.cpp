// SPDX-License-Identifier: Apache-2.0
//
// LinkPrices: a link is dear while it is busy and cheap while it idles.
#include "learn/link_prices.h"

#include <gtest/gtest.h>

namespace tencache {
namespace {

constexpr uint32_t kTicks = 100;
constexpr uint64_t kTickNs = 1000;
constexpr int64_t kPeriodNs = kTicks * kTickNs;
constexpr double kIdlePrice = 0.1;

Trace a_hundred_ticks() {
  Trace trace;
  trace.op_names = {"op"};
  trace.ops.assign(kTicks, {0, kTickNs, {}});
  return trace;
}

Simulation with_moves(std::vector<Migration> migrations) {
  Simulation simulation;
  simulation.migrations = std::move(migrations);
  return simulation;
}

/// Returns a simulation that writes in the first half of the period, and reads in the last quarter
/// and a little beyond the end.
Simulation write_then_read() {
  return with_moves({{0, false, 0, kPeriodNs / 2},
                     {0, true, kPeriodNs * 3 / 4, kPeriodNs + 5 * int64_t{kTickNs}}});
}

class LinkPricesTest : public testing::Test {
 protected:
  const Trace trace_ = a_hundred_ticks();
  const BinTimeline timeline_{trace_};
  LinkPrices prices_;
};

TEST_F(LinkPricesTest, AtFirstAllTimeHasTheFullPrice) {
  EXPECT_EQ(prices_.of_reading(0), 1.0);
  EXPECT_EQ(prices_.of_writing(kTicks - 1), 1.0);
}

TEST_F(LinkPricesTest, IdleLinksAreCheap) {
  prices_.learn(timeline_, write_then_read(), false);
  EXPECT_DOUBLE_EQ(prices_.of_writing(25), 1.0);
  EXPECT_DOUBLE_EQ(prices_.of_writing(80), kIdlePrice);
  EXPECT_DOUBLE_EQ(prices_.of_reading(25), kIdlePrice);
  EXPECT_DOUBLE_EQ(prices_.of_reading(90), 1.0);
}

TEST_F(LinkPricesTest, WhatReachesBeyondAnEndOfThePeriodIsInTheNextOne) {
  prices_.learn(timeline_, write_then_read(), false);
  EXPECT_GT(prices_.of_reading(2), 0.8);
  prices_ = {};
  prices_.learn(timeline_, with_moves({{0, true, -20 * int64_t{kTickNs}, 0}}), false);
  EXPECT_DOUBLE_EQ(prices_.of_reading(90), 1.0);
}

TEST_F(LinkPricesTest, OneWayOfAHalfDuplexLinkTakesTheOthersTime) {
  prices_.learn(timeline_, write_then_read(), true);
  for (const uint32_t bin : {25u, 90u}) {
    EXPECT_DOUBLE_EQ(prices_.of_reading(bin), 1.0);
    EXPECT_DOUBLE_EQ(prices_.of_writing(bin), 1.0);
  }
  EXPECT_DOUBLE_EQ(prices_.of_reading(62), kIdlePrice);
}

TEST_F(LinkPricesTest, PricesGoHalfOfTheWay) {
  prices_.learn(timeline_, write_then_read(), false);
  prices_.learn(timeline_, with_moves({}), false);
  EXPECT_DOUBLE_EQ(prices_.of_writing(25), (1.0 + kIdlePrice) / 2);
  EXPECT_DOUBLE_EQ(prices_.of_writing(80), kIdlePrice);
}

TEST_F(LinkPricesTest, CopesWithAPeriodThatTakesNoTime) {
  Trace trace = a_hundred_ticks();
  for (TraceOp& op : trace.ops) op.compute_ns = 0;
  const BinTimeline timeline(trace);
  prices_.learn(timeline, with_moves({}), false);
  EXPECT_DOUBLE_EQ(prices_.of_reading(0), kIdlePrice);
}

}  // namespace
}  // namespace tencache
