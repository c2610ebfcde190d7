// SPDX-License-Identifier: Apache-2.0
//
// DeviceWaits: how long the device waited, which fetches were late for it, and the counts where the
// device cannot tell. The timer is a fake whose device takes as long as the test says. The last
// test has a gate, which times the waits of the right streams, and counts threads' waits beside
// them.
#include "engine/gate/device_waits.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/gate/gate.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 64 * kKiB;
constexpr uint64_t kLongNs = 5'000'000;
constexpr uint64_t kResolutionNs = 10'000;
constexpr uint64_t kShortNs = 2'000;  // the time between two events anyway
constexpr StreamSet kStream = 2;
constexpr StreamSet kTwoStreams = 6;

class FakeTimer final : public OpTimer {
 public:
  Span* begin(const Span& of) override {
    if (under_way == spans_max) return nullptr;
    ++under_way;
    return new Span(of);
  }
  bool end(Span&) override { return !refuses_end; }
  uint64_t resolution_ns() const override { return kResolutionNs; }
  void finish(Span* span) override {
    finished.push_back({span->begun_at, span->op, device_ns});
    drop(span);
    ++under_way;
  }
  void drop(Span* span) override {
    delete span;
    --under_way;
  }
  std::vector<OpTime> take_finished() override {
    under_way -= finished.size();
    return std::exchange(finished, {});
  }

  uint64_t device_ns = 0;  // between the two events of spans that finish from now on
  size_t spans_max = 4;
  size_t under_way = 0;
  bool refuses_end = false;
  std::vector<OpTime> finished;
};

class DeviceWaitsTest : public ::testing::Test {
 protected:
  void wait(uint64_t device_ns, StreamSet streams = kStream, LateFetches late = {2, kBytes}) {
    DeviceWaits::Wait wait = waits_.begin(streams);
    add_part(&wait, device_ns, late);
    waits_.end(wait, kLongNs);
  }

  /// Adds a part to the wait: the device waits this long for these fetches, after what came before.
  void add_part(DeviceWaits::Wait* wait, uint64_t device_ns, LateFetches late) {
    wait->begin_part();
    timer_.device_ns = device_ns;
    wait->add(late);
  }

  FakeTimer timer_;
  Stats stats_;
  DeviceWaits waits_{&timer_, stats_};
};

TEST_F(DeviceWaitsTest, NothingIsCountedBeforeTheDeviceHasComeThrough) {
  wait(kLongNs);
  EXPECT_EQ(stats_.stall_ns, 0u);
  EXPECT_EQ(stats_.late_fetches, 0u);
  waits_.settle();
  EXPECT_EQ(stats_.stall_ns, kLongNs);
  EXPECT_EQ(stats_.late_fetches, 2u);
  waits_.settle();
  EXPECT_EQ(stats_.stall_ns, kLongNs) << "once";
}

TEST_F(DeviceWaitsTest, AThreadThatWaitsWhileTheDeviceComputesIsNoStall) {
  wait(kShortNs);
  waits_.settle();
  EXPECT_EQ(stats_.stall_ns, 0u);
  EXPECT_EQ(stats_.late_fetches, 0u);
  EXPECT_EQ(stats_.early_fetches, 2u);
  EXPECT_EQ(stats_.early_fetched_bytes, kBytes);
}

TEST_F(DeviceWaitsTest, EachWaitHasItsOwnVerdict) {
  wait(kLongNs, kStream, {1, kBytes});
  wait(kShortNs, kStream, {3, 3 * kBytes});
  wait(kLongNs, kStream, {});  // for room
  waits_.settle();
  EXPECT_EQ(stats_.stall_ns, 2 * kLongNs);
  EXPECT_EQ(stats_.late_fetches, 1u);
  EXPECT_EQ(stats_.early_fetches, 3u);
  EXPECT_EQ(stats_.early_fetched_bytes, 3 * kBytes);
}

TEST_F(DeviceWaitsTest, EachPartOfAWaitHasItsOwnVerdict) {
  DeviceWaits::Wait wait = waits_.begin(kStream);
  add_part(&wait, kLongNs, {1, kBytes});
  add_part(&wait, kShortNs, {2, 2 * kBytes});
  add_part(&wait, kShortNs, {});
  add_part(&wait, kLongNs, {1, kBytes});
  waits_.end(wait, kLongNs);
  waits_.settle();
  EXPECT_EQ(stats_.stall_ns, 2 * kLongNs);
  EXPECT_EQ(stats_.late_fetches, 2u);
  EXPECT_EQ(stats_.early_fetches, 2u);
  EXPECT_EQ(stats_.early_fetched_bytes, 2 * kBytes);
  EXPECT_EQ(timer_.under_way, 0u);
}

TEST_F(DeviceWaitsTest, AWaitOfManyPartsEndsWithOneForTheRest) {
  timer_.spans_max = 2 * DeviceWaits::kPartsMax;
  DeviceWaits::Wait wait = waits_.begin(kStream);
  for (int part = 0; part < 2 * DeviceWaits::kPartsMax; ++part) {
    add_part(&wait, kShortNs, {1, kBytes});
  }
  EXPECT_EQ(timer_.under_way, size_t{DeviceWaits::kPartsMax});
  timer_.device_ns = kLongNs;
  waits_.end(wait, kLongNs);
  waits_.settle();
  EXPECT_EQ(stats_.early_fetches, uint64_t{DeviceWaits::kPartsMax - 1});
  EXPECT_EQ(stats_.late_fetches, uint64_t{DeviceWaits::kPartsMax + 1});
}

TEST_F(DeviceWaitsTest, WithoutATimerForAnotherPartTheOneThatHasBegunGoesOn) {
  timer_.spans_max = 1;
  DeviceWaits::Wait wait = waits_.begin(kStream);
  add_part(&wait, kLongNs, {1, kBytes});
  add_part(&wait, kLongNs, {1, kBytes});
  waits_.end(wait, kLongNs);
  waits_.settle();
  EXPECT_EQ(stats_.stall_ns, kLongNs);
  EXPECT_EQ(stats_.late_fetches, 2u);
}

TEST_F(DeviceWaitsTest, WhereTheDeviceCannotTellTheThreadDoes) {
  wait(kShortNs, kTwoStreams);
  EXPECT_EQ(stats_.stall_ns, kLongNs);
  EXPECT_EQ(stats_.late_fetches, 2u);
  timer_.refuses_end = true;
  wait(kShortNs);
  EXPECT_EQ(stats_.stall_ns, 2 * kLongNs);
  EXPECT_EQ(stats_.late_fetches, 4u);
  EXPECT_EQ(timer_.under_way, 0u);
}

TEST_F(DeviceWaitsTest, MoreWaitsThanTheTimerHoldsSettleTheOldOnes) {
  for (size_t count = 0; count < 3 * timer_.spans_max; ++count) wait(kLongNs);
  waits_.settle();
  EXPECT_EQ(stats_.stall_ns, 3 * timer_.spans_max * kLongNs);
  EXPECT_EQ(stats_.late_fetches, 6 * timer_.spans_max);
}

TEST(DeviceWaitsWithoutTimerTest, ThreadAndDeviceAreOne) {
  Stats stats;
  DeviceWaits waits(nullptr, stats);
  DeviceWaits::Wait wait = waits.begin(kStream);
  wait.begin_part();
  wait.add({1, kBytes});
  waits.end(wait, kShortNs);
  EXPECT_EQ(stats.stall_ns, kShortNs);
  EXPECT_EQ(stats.late_fetches, 1u) << "however short";
}

TEST(DeviceWaitsOfAGateTest, FetchesAndRoomAreTimedInTheStreamOfTheOp) {
  TestEngine engine;
  char* tensor = engine.allocate(kBytes);
  FakeTimer timer;
  timer.device_ns = kLongNs;
  Stats stats;
  Recorder recorder;
  Parts parts = gate_parts(engine, recorder, stats);
  parts.wait_timer = &timer;
  Gate gate(parts);
  const std::vector<Access> accesses = {{tensor, AccessMode::kRead}};
  ASSERT_TRUE(engine.evict(tensor));
  gate.open(1, accesses, kStream);
  gate.begin_wait_for_room(kStream);
  gate.end_wait_for_room();
  gate.close();
  EXPECT_EQ(timer.under_way, 2u);
  EXPECT_GE(stats.thread_wait_ns, kShortNs);
  gate.settle_waits();
  EXPECT_EQ(stats.stall_ns, 2 * kLongNs);
  EXPECT_EQ(stats.late_fetches, 1u);
}

}  // namespace
}  // namespace tencache
