// SPDX-License-Identifier: Apache-2.0
//
// Two runs of a program over engines whose budget is too small: the first is learned, the second
// follows what the first has stored, from its first step on. What differs a little is replaced by
// what the second run does. Bytes are right, whatever is stored.
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
constexpr uint64_t kStepTicks = 1 + 5 * kLayers;

/// What the program and its machine are like in one run.
struct Variant {
  uint64_t bytes = kBytes;
  uint64_t activation_bytes = kBytes / 2;
  uint64_t budget_bytes = kLayers * kBytes;
  uint32_t norm_op = 6;           // the number of the op between backward pass and update
  size_t passes_before = 0;       // over the parameters, before the step's own
  bool has_small_chunks = false;  // the update is cut into three times as many
};

/// A training loop whose optimizer makes its state in the first step.
class ProgramRun {
 public:
  explicit ProgramRun(std::shared_ptr<const Period> stored, const Variant& variant = {})
      : variant_(variant), engine_([&](CpuEngineConfig& config) {
          config.budget_bytes = variant.budget_bytes;
          config.stored_period = std::move(stored);
        }) {}

  void make_parameters() {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      parameters_.push_back(engine_.allocate(variant_.bytes));
      GateScope op(engine_, {parameters_.back()}, AccessMode::kWrite, 9);
      fill_pattern(parameters_.back(), variant_.bytes, layer + 1);
    }
  }

  void train_step() {
    std::vector<char*> activations;
    for (size_t pass = 0; pass < variant_.passes_before; ++pass) {
      for (char* parameter : parameters_) op(20 + static_cast<uint32_t>(pass), {parameter});
    }
    for (char* parameter : parameters_) {
      op(1, {parameter});
      activations.push_back(engine_.allocate(variant_.activation_bytes));
      op(2, {activations.back()}, AccessMode::kWrite);
    }
    while (!activations.empty()) {
      op(3, {activations.back()});
      engine_.free(activations.back());
      activations.pop_back();
      op(4, {parameters_[activations.size()]});
    }
    op(variant_.norm_op, {parameters_.front()});
    const bool is_first = states_.empty();
    for (size_t layer = 0; is_first && layer < kLayers; ++layer) {
      states_.push_back(engine_.allocate(variant_.bytes));
      GateScope op(engine_, {states_.back()}, AccessMode::kWrite, 8);
      fill_pattern(states_.back(), variant_.bytes, 100 + layer);
    }
    update();
    engine_->gate().on_step();
  }

  LearnerSummary summary() { return engine_->learner()->summary(); }
  TestEngine& engine() { return engine_; }

  void expect_bytes() {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      const GateScope op(engine_, {parameters_[layer], states_[layer]});
      EXPECT_TRUE(has_pattern(parameters_[layer], variant_.bytes, layer + 1)) << "layer " << layer;
      EXPECT_TRUE(has_pattern(states_[layer], variant_.bytes, 100 + layer)) << "layer " << layer;
    }
    EXPECT_EQ(engine_.check_books(), "");
  }

  /// Trains until the condition holds. Returns false when the condition never holds.
  template <typename Condition>
  bool train_until(Condition condition) {
    return eventually([&] {
      if (condition()) return true;
      train_step();
      return false;
    });
  }

 private:
  // Updates all layers by a list op in chunks.
  void update() {
    std::vector<Access> all;
    for (size_t layer = 0; layer < kLayers; ++layer) {
      all.push_back({parameters_[layer], AccessMode::kWrite});
      all.push_back({states_[layer], AccessMode::kWrite});
    }
    engine_->expect(all);
    for (size_t layer = 0; layer < kLayers; ++layer) {
      if (!variant_.has_small_chunks) {
        op(5, {parameters_[layer], states_[layer]});
      } else {
        for (char* tensor : {parameters_[layer], states_[layer], states_[layer]}) op(5, {tensor});
      }
    }
    engine_->expect({});
  }

  void op(uint32_t number, std::initializer_list<const void*> tensors,
          AccessMode mode = AccessMode::kRead) {
    const GateScope scope(engine_, tensors, mode, number);
    // An op lasts this long, and other tensors can be fetched meanwhile.
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }

  const Variant variant_;
  TestEngine engine_;
  std::vector<char*> parameters_;
  std::vector<char*> states_;
};

/// What a first run has learned.
std::shared_ptr<const Period> stored_period(const Variant& variant = {}) {
  ProgramRun run(nullptr, variant);
  run.engine()->evictor().arm();
  run.make_parameters();
  EXPECT_TRUE(run.train_until([&] { return run.summary().following.periods >= 1; }));
  return std::make_shared<const Period>(as_stored(*run.summary().learned->period));
}

TEST(StoredEngineTest, TheFirstStepOfTheSecondRunIsFollowed) {
  const std::shared_ptr<const Period> stored = stored_period();
  ASSERT_EQ(stored->digests.size(), kStepTicks);
  ASSERT_TRUE(stored->has_unknown_extents());
  ProgramRun run(stored);
  ASSERT_TRUE(eventually([&] { return run.summary().kinds == 1; })) << "planned before any op";
  EXPECT_FALSE(run.engine()->evictor().is_armed());
  run.make_parameters();
  EXPECT_TRUE(run.engine()->evictor().is_armed()) << "with the first tensor";
  run.train_step();
  const Following first = run.summary().following;
  EXPECT_GE(first.stored_ticks_followed, kStepTicks - 4);
  EXPECT_EQ(first.lost, 0u);
  EXPECT_EQ(run.summary().stored_ticks, kStepTicks);
  EXPECT_TRUE(run.train_until([&] {
    return run.engine().read(run.engine().stats().early_fetches) > 20 && run.summary().replans > 0;
  }));
  EXPECT_EQ(run.summary().kinds, 1u) << "the program's own period takes the place of the stored";
  EXPECT_FALSE(run.summary().learned->period->has_unknown_extents());
  const Following later = run.summary().following;
  EXPECT_EQ(later.lost, 0u);
  EXPECT_EQ(later.ticks_followed - first.ticks_followed, later.ticks_seen - first.ticks_seen)
      << "no tick is lost when the plan is replaced";
  run.expect_bytes();
}

/// Expects that the program's own period takes over from a stored one that is not quite what the
/// program does.
void expect_own_period(const std::shared_ptr<const Period>& stored, const Variant& variant) {
  ProgramRun run(stored, variant);
  ASSERT_TRUE(eventually([&] { return run.summary().kinds == 1; }));
  run.make_parameters();
  run.train_step();
  EXPECT_GE(run.summary().following.stored_ticks_followed, stored->digests.size() / 2);
  ASSERT_TRUE(run.train_until([&] {
    const LearnerSummary summary = run.summary();
    return summary.following.periods >= 2 && summary.learned->period->digests != stored->digests;
  })) << "the stored plan is followed all the time";
  EXPECT_EQ(run.summary().kinds, 1u) << "the stored one is gone";
  const Following before = run.summary().following;
  run.train_step();
  const Following after = run.summary().following;
  EXPECT_EQ(after.ticks_followed - before.ticks_followed, after.ticks_seen - before.ticks_seen);
  EXPECT_EQ(after.stored_ticks_followed, before.stored_ticks_followed);
  run.expect_bytes();
}

TEST(StoredEngineTest, AnotherOpInTheStepIsLearned) {
  expect_own_period(stored_period(), {.norm_op = 7});
}

TEST(StoredEngineTest, OtherChunksOfAListOpAreLearned) {
  expect_own_period(stored_period(),
                    {.budget_bytes = kLayers * kBytes * 3 / 4, .has_small_chunks = true});
}

// Most of the step is as it was stored, so the chunks could be taken for additional ticks.
TEST(StoredEngineTest, OtherChunksOfALongStepAreLearned) {
  expect_own_period(stored_period({.passes_before = 30}),
                    {.passes_before = 30, .has_small_chunks = true});
}

TEST(StoredEngineTest, AnotherBatchIsPlannedWithItsSizes) {
  const std::shared_ptr<const Period> stored = stored_period();
  ProgramRun run(stored, {.activation_bytes = kBytes});
  ASSERT_TRUE(eventually([&] { return run.summary().kinds == 1; }));
  run.make_parameters();
  run.train_step();
  EXPECT_GE(run.summary().following.stored_ticks_followed, kStepTicks - 4);
  EXPECT_TRUE(run.train_until([&] {
    const LearnerSummary summary = run.summary();
    return summary.following.periods >= 2 &&
           summary.learned->period->born_bytes == kLayers * kBytes;
  }));
  EXPECT_EQ(run.summary().kinds, 1u);
  EXPECT_EQ(run.summary().following.lost, 0u);
  run.expect_bytes();
}

TEST(StoredEngineTest, APeriodOfAnotherProgramDoesNoHarm) {
  const std::shared_ptr<const Period> stored = stored_period();
  ProgramRun run(stored, {.bytes = kBytes + kPageBytes});
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
