// SPDX-License-Identifier: Apache-2.0
//
// From events to ticks: which ops are ticks, which op an access belongs to, lives of extents,
// marks, the bound on memory, and a thread whose events were lost.
#include "learn/tick_log.h"

#include <gtest/gtest.h>

#include <vector>

#include "learn/tick_digest.h"

namespace tencache {
namespace {

class TickLogTest : public ::testing::Test {
 protected:
  /// Appends to the events of a thread; each is later than all before it.
  void record(EventKind kind, uint64_t extent = 0, uint64_t bytes = 0, uint32_t op = 0,
              uint32_t thread = 0) {
    if (threads_.size() <= thread) threads_.resize(thread + 1);
    threads_[thread].thread_index = thread;
    threads_[thread].events.push_back({++now_, extent, bytes, op, kind});
  }
  void flush() {
    log_.append(threads_);
    threads_.clear();
  }

  uint64_t now_ = 0;
  std::vector<ThreadEvents> threads_;
  TickLog log_;
};

TEST_F(TickLogTest, OpsThatNameNoExtentAreNoTicks) {
  record(EventKind::kOpBegin, 0, 0, 1);
  record(EventKind::kOpEnd, 0, 0, 1);
  record(EventKind::kOpBegin, 0, 0, 2);
  record(EventKind::kRead, 7, 4096);
  record(EventKind::kWrite, 8, 8192);
  record(EventKind::kOpEnd, 0, 0, 2);
  flush();
  ASSERT_EQ(log_.end(), 1u);
  const LoggedTick& tick = log_.tick(0);
  EXPECT_EQ(tick.op, 2u);
  ASSERT_EQ(tick.accesses.size(), 2u);
  EXPECT_EQ(tick.accesses[0].extent_id, 7u);
  EXPECT_FALSE(tick.accesses[0].is_write);
  EXPECT_TRUE(tick.accesses[1].is_write);
  TickDigest digest(2);
  digest.add(false);
  digest.add(true);
  EXPECT_EQ(tick.digest, digest.value()) << "the gate works it out in the same way";
}

TEST_F(TickLogTest, AccessesBelongToTheOpOfTheirThread) {
  record(EventKind::kOpBegin, 0, 0, 1, 0);
  record(EventKind::kOpBegin, 0, 0, 2, 1);
  record(EventKind::kRead, 20, 4096, 0, 1);
  record(EventKind::kRead, 10, 4096, 0, 0);
  record(EventKind::kRead, 11, 4096, 0, 0);
  flush();
  ASSERT_EQ(log_.end(), 2u);
  EXPECT_EQ(log_.tick(0).op, 2u);
  EXPECT_EQ(log_.tick(1).op, 1u);
  EXPECT_EQ(log_.tick(1).accesses.size(), 2u);
}

TEST_F(TickLogTest, TellsLivesWaitsAndMarks) {
  record(EventKind::kAllocate, 5, 4096);  // before the first tick, so not known
  record(EventKind::kOpBegin, 0, 0, 1);
  record(EventKind::kRead, 5, 4096);
  record(EventKind::kWait, 0, 300);
  record(EventKind::kAllocate, 6, 4096);
  record(EventKind::kAllocate, 7, 4096);
  record(EventKind::kWait, 0, 50);
  record(EventKind::kOpBegin, 0, 0, 1);
  record(EventKind::kRead, 6, 4096);
  record(EventKind::kFree, 6, 4096);
  record(EventKind::kFree, 5, 4096);
  record(EventKind::kStep);
  record(EventKind::kStep);
  flush();
  EXPECT_EQ(log_.tick(0).wait_ns, 350u);
  EXPECT_EQ(log_.life(5)->born, kUnknownTick);
  EXPECT_EQ(log_.life(5)->freed, 1u);
  EXPECT_EQ(log_.life(7)->born, 0u);
  EXPECT_EQ(log_.life(7)->ordinal, 1u);
  EXPECT_EQ(log_.life(7)->freed, kUnknownTick);
  EXPECT_EQ(log_.life(99), nullptr);
  ASSERT_EQ(log_.births(0).size(), 2u);
  EXPECT_EQ(log_.births(0)[1], 7u);
  ASSERT_EQ(log_.marks().size(), 1u) << "two steps without a tick between them are one mark";
  EXPECT_EQ(log_.marks()[0], 2u);
}

TEST_F(TickLogTest, AStepThatEndsBeforeTheFirstTickIsNoMark) {
  record(EventKind::kStep);
  flush();
  EXPECT_TRUE(log_.marks().empty());
}

// The start of an op identifies its measured time; another op of the same moment belongs to another
// thread.
TEST_F(TickLogTest, TimesFindTheirTicks) {
  for (uint64_t moment = 10; moment <= 30; moment += 10) {
    now_ = moment;
    record(EventKind::kOpBegin, 0, 0, 1, 0);
    record(EventKind::kRead, 7, 4096, 0, 0);
  }
  threads_.resize(2);
  threads_[1] = {1, 0, {{31, 0, 0, 2, EventKind::kOpBegin}, {31, 8, 4096, 0, EventKind::kRead}}};
  flush();
  const std::vector<OpTime> times = {{11, 1, 500}, {12, 1, 600}, {31, 2, 400}, {99, 1, 800}};
  log_.append_times(times);
  // The tick waited for memory, and was timed in two parts.
  log_.append_times(std::vector<OpTime>{{31, 2, 300}});
  ASSERT_EQ(log_.end(), 4u);
  EXPECT_EQ(log_.tick(0).device_ns, 500u);
  EXPECT_FALSE(log_.tick(1).device_ns.has_value());
  uint64_t sum = 0;
  for (uint64_t number = 2; number < 4; ++number) {
    const LoggedTick& tick = log_.tick(number);
    sum += tick.device_ns.value_or(0);
    if (tick.device_ns) {
      EXPECT_EQ(tick.op, 2u);
    }
  }
  EXPECT_EQ(sum, 700u);
}

TEST_F(TickLogTest, ForgetsTheOldestTicksAndWhatDiedInThem) {
  for (uint64_t number = 0; number < kTicksMax + 10; ++number) {
    record(EventKind::kOpBegin, 0, 0, 1);
    record(EventKind::kRead, 1, 4096);
    record(EventKind::kAllocate, 1000 + number, 4096);
    if (number > 0) record(EventKind::kFree, 999 + number, 4096);
    if (number % 1000 == 0) flush();
  }
  flush();
  EXPECT_EQ(log_.begin(), 10u);
  EXPECT_EQ(log_.end(), kTicksMax + 10);
  EXPECT_EQ(log_.life(1005), nullptr);
  EXPECT_EQ(log_.life(1009)->born, kUnknownTick) << "its tick is gone, its end is not";
  EXPECT_EQ(log_.life(1010)->born, 10u);
}

TEST_F(TickLogTest, StartsAnewWhenEventsWereLost) {
  record(EventKind::kOpBegin, 0, 0, 1);
  record(EventKind::kRead, 1, 4096);
  record(EventKind::kStep);
  flush();
  record(EventKind::kOpBegin, 0, 0, 1);
  record(EventKind::kRead, 1, 4096);
  threads_[0].lost_count = 3;
  flush();
  EXPECT_EQ(log_.begin(), 1u);
  EXPECT_EQ(log_.end(), 2u);
  EXPECT_TRUE(log_.marks().empty());
}

TEST(TickDigestTest, SizesCountRoughly) {
  EXPECT_EQ(TickDigest::size_class(1 << 20), TickDigest::size_class((1 << 20) + 4096));
  EXPECT_NE(TickDigest::size_class(1 << 20), TickDigest::size_class((1 << 20) * 5 / 4));
  EXPECT_NE(TickDigest::size_class(1 << 20), TickDigest::size_class(1 << 21));
}

}  // namespace
}  // namespace tencache
