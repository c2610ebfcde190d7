// SPDX-License-Identifier: Apache-2.0
//
// The device of the simulator, driven op by op. Whole periods are in simulator_test.cpp.
#include "learn/device_model.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace tencache {
namespace {

constexpr uint32_t kBlocker = 0, kSmall = 1, kLarge = 2;

Trace three_in_turn() {
  Trace trace;
  trace.op_names = {"op"};
  for (const uint32_t tensor : {kSmall, kLarge, kBlocker}) {
    trace.ops.push_back({0, 100, {{tensor, false}}});
  }
  trace.tensors = {{10, kNoTick, kNoTick}, {10, kNoTick, kNoTick}, {20, kNoTick, kNoTick}};
  return trace;
}

class DeviceModelTest : public ::testing::Test {
 protected:
  /// Runs the op of the tick, which reads one tensor.
  void run(Tick tick) {
    device_.begin_op(tick);
    device_.need_now();
    device_.catch_up();
    device_.require(trace_.ops[tick]);
    device_.use(trace_.ops[tick].accesses[0]);
    device_.compute(100);
    device_.need_no_longer();
  }
  DeviceModel::Place place(uint32_t tensor) { return device_.places()[tensor].first; }

  const Trace trace_ = three_in_turn();
  const TraceIndex index_{trace_};
  const Machine machine_ = {.budget_bytes = 20, .read_bytes_per_s = 1e9, .write_bytes_per_s = 1e9};
  Simulation notes_;
  DeviceModel device_{index_, machine_, {}, &notes_};
};

// A fetch that the plan asks for waits behind one that finds no room, so the op fetches for itself.
// Once the tensor has left again, nobody asks for it any more.
TEST_F(DeviceModelTest, ARequestThatAnOpHasServedIsOver) {
  ASSERT_EQ(place(kLarge), DeviceModel::Place::kCold) << "the others fill the device";
  device_.request_eviction(kSmall);
  run(2);
  ASSERT_EQ(place(kSmall), DeviceModel::Place::kCold);
  device_.request_fetch(kLarge);
  device_.request_fetch(kSmall);
  run(0);
  EXPECT_EQ(notes_.bytes_late, 10u);
  device_.request_eviction(kSmall);
  device_.request_eviction(kBlocker);
  device_.compute(100);
  EXPECT_EQ(place(kLarge), DeviceModel::Place::kFetching);
  run(1);
  device_.request_eviction(kLarge);
  device_.compute(100);
  EXPECT_EQ(place(kSmall), DeviceModel::Place::kCold);
  EXPECT_EQ(notes_.bytes_read, 30u);
}

/// Three tensors in turn, and an op that reads the second and the third, in either sequence.
class OpOfTwoTest : public ::testing::TestWithParam<bool> {
 protected:
  static Trace op_of_two(bool is_swapped) {
    Trace trace = three_in_turn();
    std::vector<TraceAccess> both = {{kSmall, false}, {kLarge, false}};
    if (is_swapped) std::swap(both[0], both[1]);
    trace.ops.push_back({0, 100, both});
    return trace;
  }
  void read_both() {
    device_.begin_op(3);
    device_.need_now();
    device_.require(trace_.ops[3]);
  }

  const Trace trace_ = op_of_two(GetParam());
  const TraceIndex index_{trace_};
  const Machine machine_ = {.budget_bytes = 40, .read_bytes_per_s = 1e9, .write_bytes_per_s = 1e9};
  Simulation notes_;
  DeviceModel device_{index_, machine_, {}, &notes_};
};

// What was under way has arrived when the op has waited for what it found cold.
TEST_P(OpOfTwoTest, OnlyWhatItFindsColdIsLate) {
  device_.request_eviction(kSmall);
  device_.request_eviction(kLarge);
  device_.begin_op(2);
  device_.compute(1000);
  device_.request_fetch(kLarge);
  device_.compute(1);
  ASSERT_EQ(device_.places()[kLarge].first, DeviceModel::Place::kFetching);
  ASSERT_EQ(device_.places()[kSmall].first, DeviceModel::Place::kCold);
  read_both();
  EXPECT_EQ(notes_.bytes_late, 10u);
}

TEST_P(OpOfTwoTest, AllThatItFindsColdIsLate) {
  device_.request_eviction(kSmall);
  device_.request_eviction(kLarge);
  device_.compute(1000);
  read_both();
  EXPECT_EQ(notes_.bytes_late, 30u);
}

INSTANTIATE_TEST_SUITE_P(Sequences, OpOfTwoTest, ::testing::Bool());

}  // namespace
}  // namespace tencache
