// SPDX-License-Identifier: Apache-2.0
//
// Two runs of a program over engines whose budget is too small: the first is learned, the second
// follows what the first has stored, from its first step on. Bytes are right, whatever is stored.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "support/eventually.h"
#include "support/stored_period.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 512 * kKiB;
constexpr size_t kLayers = 12;

/// A training loop whose optimizer makes its state in the first step.
class ProgramRun {
 public:
  explicit ProgramRun(std::shared_ptr<const Period> stored, uint64_t bytes = kBytes)
      : bytes_(bytes), engine_([&](CpuEngineConfig& config) {
          config.budget_bytes = kLayers * kBytes;
          config.stored_period = std::move(stored);
        }) {}

  void make_parameters() {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      parameters_.push_back(engine_.allocate(bytes_));
      GateScope op(engine_, {parameters_.back()}, AccessMode::kWrite, 9);
      fill_pattern(parameters_.back(), bytes_, layer + 1);
    }
  }

  void train_step() {
    std::vector<char*> activations;
    for (char* parameter : parameters_) {
      op(1, {parameter});
      activations.push_back(engine_.allocate(bytes_ / 2));
      op(2, {activations.back()}, AccessMode::kWrite);
    }
    while (!activations.empty()) {
      op(3, {activations.back()});
      engine_.free(activations.back());
      activations.pop_back();
      op(4, {parameters_[activations.size()]});
    }
    const bool is_first = states_.empty();
    for (size_t layer = 0; is_first && layer < kLayers; ++layer) {
      states_.push_back(engine_.allocate(bytes_));
      GateScope op(engine_, {states_.back()}, AccessMode::kWrite, 8);
      fill_pattern(states_.back(), bytes_, 100 + layer);
    }
    for (size_t layer = 0; layer < kLayers; ++layer) op(5, {parameters_[layer], states_[layer]});
    engine_->gate().on_step();
  }

  LearnerSummary summary() { return engine_->learner()->summary(); }
  TestEngine& engine() { return engine_; }

  void expect_bytes() {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      const GateScope op(engine_, {parameters_[layer], states_[layer]});
      EXPECT_TRUE(has_pattern(parameters_[layer], bytes_, layer + 1)) << "layer " << layer;
      EXPECT_TRUE(has_pattern(states_[layer], bytes_, 100 + layer)) << "layer " << layer;
    }
    EXPECT_EQ(engine_.check_books(), "");
  }

  /// Goes on until the condition holds; false when it does not.
  template <typename Condition>
  bool train_until(Condition condition) {
    return eventually([&] {
      if (condition()) return true;
      train_step();
      return false;
    });
  }

 private:
  void op(uint32_t number, std::initializer_list<const void*> tensors,
          AccessMode mode = AccessMode::kRead) {
    const GateScope scope(engine_, tensors, mode, number);
    // The length of an op, in which other tensors can be fetched.
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }

  const uint64_t bytes_;
  TestEngine engine_;
  std::vector<char*> parameters_;
  std::vector<char*> states_;
};

/// What a first run has learned.
std::shared_ptr<const Period> stored_period() {
  ProgramRun run(nullptr);
  run.engine()->evictor().arm();
  run.make_parameters();
  EXPECT_TRUE(run.train_until([&] { return run.summary().following.periods >= 1; }));
  return std::make_shared<const Period>(as_stored(*run.summary().learned->period));
}

TEST(StoredEngineTest, TheFirstStepOfTheSecondRunIsFollowed) {
  const std::shared_ptr<const Period> stored = stored_period();
  ASSERT_EQ(stored->digests.size(), 5 * kLayers);
  ASSERT_TRUE(stored->has_unknown_extents());
  ProgramRun run(stored);
  ASSERT_TRUE(eventually([&] { return run.summary().kinds == 1; })) << "planned before any op";
  EXPECT_FALSE(run.engine()->evictor().is_armed());
  run.make_parameters();
  EXPECT_TRUE(run.engine()->evictor().is_armed()) << "with the first tensor";
  run.train_step();
  const Following first = run.summary().following;
  EXPECT_GE(first.stored_ticks_followed, 5 * kLayers - 4);
  EXPECT_EQ(first.lost, 0u);
  EXPECT_EQ(run.summary().stored_ticks, 5 * kLayers);
  EXPECT_TRUE(run.train_until([&] {
    return run.engine().read(run.engine().stats().early_fetches) > 20 && run.summary().replans > 0;
  }));
  EXPECT_EQ(run.summary().kinds, 1u) << "the program's own period takes the place of the stored";
  EXPECT_FALSE(run.summary().learned->period->has_unknown_extents());
  EXPECT_EQ(run.summary().following.lost, 0u);
  run.expect_bytes();
}

TEST(StoredEngineTest, APeriodOfAnotherProgramDoesNoHarm) {
  const std::shared_ptr<const Period> stored = stored_period();
  ProgramRun run(stored, kBytes + kPageBytes);
  run.make_parameters();
  EXPECT_TRUE(run.train_until([&] { return run.summary().following.periods >= 2; }));
  EXPECT_EQ(run.summary().following.stored_ticks_followed, 0u);
  EXPECT_FALSE(run.summary().learned->period->has_unknown_extents());
  run.expect_bytes();
}

TEST(StoredEngineTest, WhatFitsTheBudgetIsNotWatched) {
  const std::shared_ptr<const Period> stored = stored_period();
  TestEngine engine([&](CpuEngineConfig& config) {
    config.budget_bytes = 2 * stored->trace.peak_bytes();
    config.stored_period = stored;
  });
  engine.allocate(kBytes);
  EXPECT_FALSE(engine->evictor().is_armed());
}

}  // namespace
}  // namespace tencache
