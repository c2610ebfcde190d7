// SPDX-License-Identifier: Apache-2.0
//
// PlanCursorFixture: a cursor that follows a step of eight parameters. It keeps what the cursor
// requests.
//
// Threads: the test's own.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/plan/plan_cursor.h"
#include "learn/tick_digest.h"
#include "support/stored_period.h"

namespace tencache {

/// A step that reads eight parameters forwards and backwards, and a machine that holds five.
class PlanCursorFixture : public ::testing::Test, protected PlanSink {
 protected:
  static constexpr uint64_t kBytes = 1 << 20;
  static constexpr size_t kLayers = 8;

  PlanCursorFixture() {
    for (size_t index = 0; index < kLayers; ++index) {
      extents_[index].id = index + 1;
      extents_[index].bytes = kBytes;
    }
    cursor_ = std::make_unique<PlanCursor>(static_cast<PlanSink&>(*this));
  }

  void evict(std::span<const MoveRequest> requests) override {
    evicted_.insert(evicted_.end(), requests.begin(), requests.end());
  }
  void fetch(std::span<const MoveRequest> requests) override {
    fetched_.insert(fetched_.end(), requests.begin(), requests.end());
  }
  void forget_fetches() override { ++forgotten_; }
  void on_period() override { ++periods_; }

  // A plan of a step whose ticks are op `first_op` on each parameter, then the next op in reverse
  // order.
  std::shared_ptr<const LearnedPlan> learned(uint64_t number, uint32_t first_op = 1,
                                             uint64_t budget_bytes = 5 * kBytes) const {
    auto period = std::make_shared<Period>();
    period->trace.op_names = {"op"};
    for (size_t tick = 0; tick < 2 * kLayers; ++tick) {
      const auto tensor = static_cast<uint32_t>(layer_of(tick));
      period->trace.ops.push_back({0, 1'000'000, {{tensor, false}}});
      period->digests.push_back(digest(tick, first_op));
    }
    for (size_t index = 0; index < kLayers; ++index) {
      period->trace.tensors.push_back({kBytes, kNoTick, kNoTick});
      period->extent_ids.push_back(index + 1);
    }
    Machine machine;
    machine.budget_bytes = budget_bytes;
    machine.read_bytes_per_s = machine.write_bytes_per_s = 10e9;
    return make_learned_plan(number, std::move(period), machine);
  }

  static size_t layer_of(size_t tick) { return tick < kLayers ? tick : 2 * kLayers - 1 - tick; }
  static uint64_t digest(size_t tick, uint32_t first_op = 1) {
    TickDigest value(first_op + (tick < kLayers ? 0 : 1));
    value.add(false);
    return value.value();
  }

  void open(size_t tick, uint32_t first_op = 1) {
    Extent* extent = &extents_[layer_of(tick)];
    cursor_->on_tick(digest(tick, first_op), std::span(&extent, 1));
  }
  void play(size_t tick, uint32_t first_op = 1) {
    open(tick, first_op);
    cursor_->on_outermost_close();
  }
  void play_step(uint32_t first_op = 1) {
    for (size_t tick = 0; tick < 2 * kLayers; ++tick) play(tick, first_op);
  }
  /// Plays a step whose ticks are ops within an op that is still open.
  void play_step_in_one_op() {
    for (size_t tick = 0; tick < 2 * kLayers; ++tick) open(tick);
  }
  bool is_following() const { return cursor_->following().kind != 0; }

  std::array<Extent, kLayers> extents_;
  std::vector<MoveRequest> evicted_;
  std::vector<MoveRequest> fetched_;
  int forgotten_ = 0;
  int periods_ = 0;
  std::unique_ptr<PlanCursor> cursor_;
};

}  // namespace tencache
