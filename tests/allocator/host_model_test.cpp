// SPDX-License-Identifier: Apache-2.0
//
// HostModel: small cases worked out by hand. The simulator with it: the cost of a disk below host
// memory, which is zero where host memory holds everything.
#include "learn/host_model.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "learn/simulator.h"
#include "support/random_trace.h"
#include "support/simulate.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 100;

// Tensors of 100 bytes; reading one from disk takes 100 ns, and writing one takes 200.
class HostModelTest : public ::testing::Test {
 protected:
  void start(uint64_t host_bytes, uint64_t headroom_bytes, uint32_t tensors,
             uint64_t copy_ahead_bytes = 0) {
    trace_.tensors.assign(tensors, {kBytes, kNoTick, kNoTick});
    machine_.host_bytes = host_bytes;
    machine_.host_headroom_bytes = headroom_bytes;
    machine_.disk_read_bytes_per_s = 1e9;
    machine_.disk_write_bytes_per_s = 0.5e9;
    model_.emplace(trace_, machine_, copy_ahead_bytes, &notes_);
  }
  /// Makes the tensor cold. Returns the time at which there was room for it.
  uint64_t leave(uint32_t tensor, uint64_t now_ns, uint64_t next_use) {
    const uint64_t room_ns = model_->take_room(tensor, now_ns);
    model_->become_cold(tensor, next_use);
    return room_ns;
  }

  Trace trace_;
  Machine machine_;
  Simulation notes_;
  std::optional<HostModel> model_;
};

TEST_F(HostModelTest, WhoIsNeededLastGoesToDisk) {
  start(2 * kBytes, 0, 3);
  EXPECT_EQ(leave(0, 0, 30), 0u);
  EXPECT_EQ(leave(1, 0, 10), 0u);
  EXPECT_EQ(leave(2, 50, 20), 250u) << "when tensor 0 is written";
  EXPECT_EQ(notes_.disk_bytes_written, kBytes);
  EXPECT_EQ(model_->used_bytes(), 2 * kBytes);
  EXPECT_EQ(model_->fetch(1, 300), 300u);
  EXPECT_EQ(model_->fetch(2, 300), 300u);
  model_->become_resident(1);
  EXPECT_EQ(model_->fetch(0, 300), 400u) << "in the place of the copy of tensor 1";
  EXPECT_FALSE(model_->holds(1));
  EXPECT_EQ(notes_.disk_bytes_read, kBytes);
}

TEST_F(HostModelTest, WhatWasReadIsNotWrittenAgain) {
  start(kBytes, 0, 2);
  leave(0, 0, 10);
  EXPECT_EQ(leave(1, 0, 20), 200u);
  EXPECT_EQ(notes_.disk_bytes_written, kBytes);
  EXPECT_EQ(model_->fetch(0, 1000), 1300u) << "tensor 1 is written, then 0 read";
  model_->become_resident(0);
  EXPECT_TRUE(model_->holds(0));
  model_->become_cold(0, 40);
  EXPECT_EQ(model_->fetch(1, 2000), 2100u) << "tensor 0 has its slot still";
  EXPECT_EQ(notes_.disk_bytes_written, 2 * kBytes);
  model_->forget(0);
  model_->forget(1);
  EXPECT_EQ(model_->used_bytes(), 0u);
}

TEST_F(HostModelTest, WhatIsNeededNextIsReadAhead) {
  start(6 * kBytes, kBytes, 8);
  for (uint32_t tensor = 0; tensor < 8; ++tensor) leave(tensor, 0, 10 + tensor);
  EXPECT_EQ(notes_.disk_bytes_written, 3 * kBytes) << "4 to 6, when 5 to 7 leave";
  const auto take = [this](uint32_t tensor, uint64_t now_ns) {
    EXPECT_EQ(model_->fetch(tensor, now_ns), now_ns) << tensor;
    model_->forget(tensor);
    model_->advance(now_ns + 500);
  };
  take(0, 5000);
  EXPECT_EQ(notes_.disk_bytes_read, 2 * kBytes) << "4 and 5: host memory holds 1 to 5 and no more";
  EXPECT_EQ(notes_.disk_bytes_written, 4 * kBytes) << "tensor 7 makes room for 5";
  take(1, 6000);
  EXPECT_EQ(notes_.disk_bytes_read, 3 * kBytes);
  take(2, 7000);
  EXPECT_EQ(notes_.disk_bytes_read, 4 * kBytes);
  for (const uint32_t tensor : {3, 4, 5, 6, 7}) take(tensor, 5000 + 1000 * tensor);
}

TEST_F(HostModelTest, WritesMayBeBehindByTheHeadroom) {
  start(2 * kBytes, kBytes, 3);
  leave(0, 0, 10);
  EXPECT_EQ(notes_.disk_bytes_written, 0u);
  EXPECT_EQ(leave(1, 0, 20), 0u) << "200 ns of writing, which the headroom hides";
  EXPECT_EQ(leave(2, 0, 30), 200u);
  EXPECT_EQ(notes_.disk_bytes_written, 2 * kBytes);
}

// Half of the headroom is for evictions alone. Once no more than that half is free, the whole
// headroom is made free.
TEST_F(HostModelTest, RoomIsMadeForTheWholeHeadroom) {
  start(6 * kBytes, 2 * kBytes, 7);
  for (uint32_t tensor = 0; tensor < 5; ++tensor) EXPECT_EQ(leave(tensor, 0, 10 + tensor), 0u);
  EXPECT_EQ(notes_.disk_bytes_written, 0u);
  EXPECT_EQ(leave(5, 0, 20), 0u) << "400 ns of writing, and room for two meanwhile";
  EXPECT_EQ(notes_.disk_bytes_written, 2 * kBytes);
  EXPECT_EQ(model_->used_bytes(), 4 * kBytes);
}

// Tensors that are on their way hold most of host memory. What could make room is needed sooner.
TEST_F(HostModelTest, WhatIsNeededSoonerMakesNoRoom) {
  start(3 * kBytes, 0, 4);
  for (uint32_t tensor = 0; tensor < 4; ++tensor) leave(tensor, 0, 10 + tensor);
  EXPECT_EQ(notes_.disk_bytes_written, kBytes) << "tensor 2, before 3 was cold";
  model_->fetch(0, 5000);
  model_->fetch(3, 5000);
  model_->advance(9000);
  EXPECT_EQ(notes_.disk_bytes_read, 0u) << "tensor 1 stays";
  model_->become_resident(3);
  model_->advance(10000);
  EXPECT_EQ(notes_.disk_bytes_read, kBytes) << "in the place of the copy of tensor 3";
}

TEST_F(HostModelTest, WhatIsNeededLastIsCopiedAhead) {
  start(3 * kBytes, 0, 4, 2 * kBytes);
  for (uint32_t tensor = 0; tensor < 3; ++tensor) leave(tensor, 0, 10 + tensor);
  model_->advance(1);
  EXPECT_EQ(notes_.disk_bytes_written, kBytes);
  model_->advance(1000);
  EXPECT_EQ(notes_.disk_bytes_written, 2 * kBytes) << "and no more than was said";
  EXPECT_EQ(leave(3, 1000, 30), 1000u) << "a block is given back without a write";
  EXPECT_EQ(notes_.disk_bytes_written, 2 * kBytes);
}

// ---- The simulator over it -----------------------------------------------------------------

Machine with_host(Machine machine, uint64_t host_bytes, double disk_bytes_per_s) {
  machine.host_bytes = host_bytes;
  machine.host_headroom_bytes = host_bytes / 16;
  machine.disk_read_bytes_per_s = machine.disk_write_bytes_per_s = disk_bytes_per_s;
  return machine;
}

// Three tensors in turn, one on the device, one in host memory.
TEST(HostSimulationTest, FetchesWaitForTheDisk) {
  Trace trace;
  trace.op_names = {"op"};
  for (uint32_t tensor = 0; tensor < 3; ++tensor) {
    trace.ops.push_back({0, 1000, {{tensor, true}}});
    trace.tensors.push_back({100, kNoTick, kNoTick});
  }
  const Plan plan = {{}, Victim::kFarthestNextUse};
  const Machine roomy = byte_per_ns(100);
  const Simulation without = simulate(trace, plan, roomy);
  EXPECT_EQ(without.disk_bytes_read + without.disk_bytes_written, 0u);
  const Simulation with = simulate(trace, plan, with_host(roomy, 100, 1e9));
  // Each op waits for its own bytes from disk, and for the tensor of the previous op to leave. That
  // tensor waits for a write from host memory.
  EXPECT_GT(with.step_ns, without.step_ns);
  EXPECT_EQ(with.bytes_read, without.bytes_read);
  EXPECT_GT(with.disk_bytes_read, 0u);
  EXPECT_GT(with.disk_bytes_written, 0u);
  EXPECT_LE(with.disk_bytes_read, with.bytes_read);
}

TEST(HostSimulationTest, WhatHostMemoryHoldsCostsNothingMore) {
  uint64_t fast_written_bytes = 0;
  uint64_t expected_written_bytes = 0;
  uint64_t disk_read_bytes = 0;
  uint64_t read_and_ahead_bytes = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Trace trace = random_trace(random, {});
    uint64_t all_bytes = 0;
    for (const TraceTensor& tensor : trace.tensors) all_bytes += tensor.bytes;
    const Machine machine = byte_per_ns(all_bytes / 2);
    for (const Victim rule : {Victim::kLeastRecentlyUsed, Victim::kFarthestNextUse}) {
      const Plan plan = {{}, rule};
      const Simulation expected = simulate(trace, plan, machine);
      const Simulation result = simulate(trace, plan, with_host(machine, 2 * all_bytes, 1e6));
      EXPECT_EQ(result.step_ns, expected.step_ns);
      EXPECT_EQ(result.disk_bytes_read + result.disk_bytes_written, 0u);
      // The fastest possible disk, with hardly any host memory above it.
      const Simulation fast = simulate(trace, plan, with_host(machine, all_bytes / 16, 1e18));
      disk_read_bytes += fast.disk_bytes_read;
      read_and_ahead_bytes += fast.bytes_read + all_bytes / 16;
      fast_written_bytes += fast.bytes_written;
      expected_written_bytes += expected.bytes_written;
      EXPECT_LE(fast.over_budget_bytes, expected.over_budget_bytes);
    }
  }
  // Sums over all traces are compared, because now and then another victim goes, or a tensor read
  // ahead has to make room again. Copies go from host memory before they can save a write; few are
  // read twice.
  EXPECT_GE(fast_written_bytes, expected_written_bytes);
  EXPECT_LE(disk_read_bytes, read_and_ahead_bytes);
}

}  // namespace
}  // namespace tencache
