// SPDX-License-Identifier: Apache-2.0
//
// Learning and following from end to end: a program of gate calls over an engine whose budget is
// too small. Plans must be made and fetches must come early. Bytes must be right whatever the
// program does next: another kind of step, freed parameters, chaos, many threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "engine/move/mover.h"
#include "engine/parts.h"
#include "engine/plan/machine_meter.h"
#include "learn/planner.h"
#include "learn/stall_free_budget.h"
#include "memory/budget.h"
#include "support/eventually.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 512 * kKiB;
constexpr size_t kLayers = 12;

class PlanEngineTest : public ::testing::Test {
 protected:
  explicit PlanEngineTest(const TestEngine::Adjust& adjust = {})
      : engine_([&](CpuEngineConfig& config) {
          config.budget_bytes = kLayers / 2 * kBytes;
          if (adjust) adjust(config);
        }) {
    engine_->evictor().arm();
    for (size_t layer = 0; layer < kLayers; ++layer) add_layer();
  }

  void add_layer() {
    parameters_.push_back(engine_.allocate(kBytes));
    GateScope op(engine_, {parameters_.back()}, AccessMode::kWrite);
    fill_pattern(parameters_.back(), kBytes, parameters_.size());
  }

  void op(uint32_t number, char* parameter, AccessMode mode = AccessMode::kRead) {
    const GateScope scope(engine_, {parameter}, mode, number);
    // An op lasts this long, and other tensors can be fetched meanwhile.
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }

  // Plays the forward pass, in which each layer makes an activation. Without a backward pass the
  // activation is freed at once.
  std::vector<char*> forward(uint64_t activation_bytes, bool is_evaluation = false) {
    std::vector<char*> activations;
    for (char* parameter : parameters_) {
      op(1, parameter);
      activations.push_back(engine_.allocate(activation_bytes));
      op(2, activations.back(), AccessMode::kWrite);
      if (is_evaluation) engine_.free(activations.back());
    }
    return activations;
  }
  // Plays forward and backward with an activation for each layer, then an update of all.
  void train_step(uint64_t activation_bytes = kBytes / 4) {
    std::vector<char*> activations = forward(activation_bytes);
    replace_unnamed();
    while (!activations.empty()) {
      op(3, activations.back());
      engine_.free(activations.back());
      activations.pop_back();
      op(4, parameters_[activations.size()]);
    }
    for (char* parameter : parameters_) op(5, parameter, AccessMode::kWrite);
    engine_->gate().on_step();
  }
  // Replaces the tensor that no op ever names, so that each step has a new one.
  void replace_unnamed() {
    if (unnamed_ == nullptr) return;
    char* old = std::exchange(unnamed_, engine_.allocate(kBytes));
    engine_.free(old);
  }
  void evaluate() {
    for (int batch = 0; batch < 8; ++batch) {
      for (char* parameter : parameters_) op(6, parameter);
    }
  }

  /// Repeats the step until the condition holds. Returns false when the condition never holds.
  template <typename Step, typename Condition>
  static bool repeat_until(Step step, Condition condition) {
    // Plans are made beside the program, by a thread that may have to wait for a core.
    return eventually([&] {
      if (condition()) return true;
      step();
      return false;
    });
  }

  Following following() { return engine_->learner()->summary().following; }

  void expect_bytes() {
    for (size_t layer = 0; layer < parameters_.size(); ++layer) {
      const GateScope op(engine_, {parameters_[layer]});
      ASSERT_TRUE(has_pattern(parameters_[layer], kBytes, layer + 1)) << "layer " << layer;
    }
    EXPECT_EQ(engine_.check_books(), "");
    EXPECT_EQ(engine_.read(engine_.stats().unannounced_reads), 0u);
  }

  TestEngine engine_;
  std::vector<char*> parameters_;
  char* unnamed_ = nullptr;  // null: the steps make none
};

TEST_F(PlanEngineTest, LearnsAndFetchesAhead) {
  EXPECT_TRUE(repeat_until([&] { train_step(); },
                           [&] { return engine_.read(engine_.stats().early_fetches) > 20; }));
  EXPECT_TRUE(repeat_until([&] { train_step(); }, [&] { return following().periods >= 2; }));
  const LearnerSummary summary = engine_->learner()->summary();
  ASSERT_NE(summary.learned, nullptr);
  EXPECT_EQ(summary.kinds, 1u);
  EXPECT_EQ(summary.learned->tick_count(), 5 * kLayers);
  EXPECT_GT(summary.learned->planned.simulation.bytes_read, 0u);
  EXPECT_GE(summary.learned->bound_ns, summary.learned->planned.simulation.compute_ns);
  expect_bytes();
}

// Hooks may arm in the middle of the first optimizer step, after what it names.
TEST_F(PlanEngineTest, StepsBeforeTheFirstOpDoNotEndLearning) {
  TestEngine engine;
  engine->evictor().arm();
  for (int step = 0; step < 20; ++step) {
    engine->gate().on_step();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the learner looks meanwhile
  }
  const char* parameter = engine.allocate(kBytes);
  EXPECT_TRUE(repeat_until(
      [&] {
        for (uint32_t number = 1; number <= 8; ++number) {
          const GateScope scope(engine, {parameter}, AccessMode::kWrite, number);
        }
        engine->gate().on_step();
      },
      [&] { return engine->learner()->summary().kinds == 1; }));
}

TEST_F(PlanEngineTest, TheThirdStepIsPlanned) {
  train_step();
  train_step();
  ASSERT_TRUE(eventually([&] { return engine_->learner()->summary().kinds == 1; }))
      << "one whole step is enough";
  const Following before = following();
  train_step();
  EXPECT_GE(following().ticks_followed - before.ticks_followed, 5 * kLayers - 4);
  EXPECT_EQ(following().lost, 0u);
  expect_bytes();
}

// What a program makes once, such as an optimizer's state, does not count among the bytes that a
// step allocates anew, by which the plans of one kind differ. So the plan of the step that makes it
// is renewed like any other, and the new one is followed.
TEST_F(PlanEngineTest, WhatTheFirstStepMakesDoesNotKeepItsPlan) {
  std::vector<char*> states;
  const auto step = [&] {
    while (states.size() < kLayers) {
      states.push_back(engine_.allocate(kBytes));
      op(8, states.back(), AccessMode::kWrite);
    }
    for (char* state : states) op(9, state, AccessMode::kWrite);
    train_step();
  };
  engine_->gate().on_step();
  step();
  ASSERT_TRUE(eventually([&] { return engine_->learner()->summary().kinds == 1; }));
  const std::shared_ptr<const LearnedPlan> first = engine_->learner()->summary().learned;
  EXPECT_EQ(first->tick_count(), 6 * kLayers);
  EXPECT_TRUE(repeat_until(step, [&] {
    const LearnerSummary summary = engine_->learner()->summary();
    return summary.replans >= 2 && summary.following.periods >= 2 &&
           summary.following.last_period_born_bytes == kLayers * kBytes / 4 &&
           summary.learned != first && summary.stall_free_budget_bytes > 0;
  }));
  EXPECT_EQ(engine_->learner()->summary().kinds, 1u);
  expect_bytes();
}

TEST_F(PlanEngineTest, AGuessFromAnOddStepIsReplaced) {
  constexpr uint32_t kOddTicks = 4;
  train_step();
  // These ops come once in this program, as those of a profiler or a warm-up do.
  for (uint32_t tick = 0; tick < kOddTicks; ++tick) op(7, parameters_[2 * tick]);
  train_step();
  ASSERT_TRUE(eventually([&] { return engine_->learner()->summary().kinds == 1; }));
  ASSERT_EQ(engine_->learner()->summary().learned->tick_count(), 5 * kLayers + kOddTicks);
  EXPECT_TRUE(repeat_until(
      [&] { train_step(); },
      [&] { return engine_->learner()->summary().learned->tick_count() == 5 * kLayers; }));
  EXPECT_TRUE(repeat_until([&] { train_step(); }, [&] { return following().periods >= 2; }));
  EXPECT_EQ(engine_->learner()->summary().kinds, 1u);
  expect_bytes();
}

// The second evaluation is planned, and the step's plan survives the first.
TEST_F(PlanEngineTest, WhatComesBetweenStepsIsAKindOfItsOwn) {
  train_step();
  train_step();
  ASSERT_TRUE(eventually([&] { return engine_->learner()->summary().kinds == 1; }));
  evaluate();
  train_step();
  ASSERT_TRUE(eventually([&] { return engine_->learner()->summary().kinds == 2; }));
  const Following before = following();
  evaluate();
  EXPECT_NE(following().kind, before.kind);
  train_step();
  EXPECT_EQ(following().kind, before.kind);
  EXPECT_GE(following().ticks_followed - before.ticks_followed, (5 + 8) * kLayers - 16);
  EXPECT_EQ(engine_->learner()->summary().kinds, 2u);
  EXPECT_EQ(engine_->learner()->summary().dropped, 0u);
  expect_bytes();
}

// An evaluation may compute just what the forward pass does. It comes again and again without what
// follows the forward pass in a step, so it is a kind of its own all the same.
TEST_F(PlanEngineTest, AnEvaluationThatLooksLikeTheForwardPassIsToldApart) {
  const auto evaluate_like_forward = [&] {
    for (int batch = 0; batch < 8; ++batch) forward(kBytes / 4, true);
  };
  train_step();
  train_step();
  ASSERT_TRUE(eventually([&] { return engine_->learner()->summary().kinds == 1; }));
  evaluate_like_forward();
  train_step();
  ASSERT_TRUE(eventually([&] { return engine_->learner()->summary().kinds == 2; }));
  const uint64_t training = following().kind;
  evaluate_like_forward();
  EXPECT_NE(following().kind, training);
  EXPECT_GE(following().periods, 5u);
  train_step();
  EXPECT_EQ(following().kind, training);
  EXPECT_EQ(engine_->learner()->summary().kinds, 2u);
  expect_bytes();
}

// The second step is planned before it has ended: a part of it shows that it repeats the first
// step, wherever in the first step hooks armed.
TEST_F(PlanEngineTest, ALoopIsPlannedInItsSecondPass) {
  constexpr uint32_t kPasses = 16;
  constexpr uint32_t kPassesBefore = 14;
  const auto passes = [&](uint32_t first, uint32_t end) {
    for (uint32_t pass = first; pass < end; ++pass) {
      for (char* parameter : parameters_) op(10 + pass, parameter);
    }
  };
  const auto step = [&] {
    passes(0, kPasses);
    engine_->gate().on_step();
  };
  step();
  passes(0, kPassesBefore);
  engine_->learner()->nudge();
  EXPECT_TRUE(eventually([&] { return engine_->learner()->summary().kinds == 1; }));
  const uint64_t followed = following().ticks_followed;
  passes(kPassesBefore, kPasses);
  EXPECT_GE(following().ticks_followed - followed, 2 * kLayers - 8);
  engine_->gate().on_step();
  step();
  EXPECT_TRUE(eventually([&] { return engine_->learner()->summary().replans > 0; }));
  step();
  EXPECT_EQ(engine_->learner()->summary().kinds, 1u) << "seen from its mark, it is the same loop";
  EXPECT_EQ(following().lost, 0u);
  expect_bytes();
}

// Each step is another row of ops.
TEST_F(PlanEngineTest, AProgramThatNeverRepeatsIsPlannedLessAndLess) {
  uint32_t number = 100;
  ASSERT_TRUE(repeat_until(
      [&] {
        for (char* parameter : parameters_) op(number++, parameter);
        engine_->gate().on_step();
      },
      [&] { return engine_->learner()->summary().passed_over >= 6; }));
  EXPECT_LE(engine_->learner()->summary().kinds, 4u);
  expect_bytes();
}

TEST_F(PlanEngineTest, KeepsAPlanForEachKind) {
  EXPECT_TRUE(repeat_until([&] { train_step(); }, [&] { return following().periods >= 1; }));
  const uint64_t training = following().kind;
  EXPECT_TRUE(repeat_until([&] { train_step(kBytes / 2); },
                           [&] {
                             return engine_->learner()->summary().learned->period->born_bytes ==
                                    kLayers * kBytes / 2;
                           }))
      << "another batch size is planned, too";
  EXPECT_EQ(following().kind, training) << "and is of the same kind";
  EXPECT_TRUE(repeat_until([&] { evaluate(); },
                           [&] { return following().kind > training && following().periods >= 1; }))
      << "evaluation has no steps";
  EXPECT_TRUE(
      repeat_until([&] { train_step(); },
                   [&] { return following().kind == training && following().periods >= 1; }))
      << "the first kind is known still";
  expect_bytes();
}

TEST_F(PlanEngineTest, ReactsWhenTheProgramChanges) {
  EXPECT_TRUE(repeat_until([&] { train_step(); }, [&] { return following().periods >= 1; }));
  for (size_t layer = 0; layer < 4; ++layer) {
    engine_.free(parameters_[layer]);
    parameters_[layer] = engine_.allocate(kBytes);
    GateScope op(engine_, {parameters_[layer]}, AccessMode::kWrite);
    fill_pattern(parameters_[layer], kBytes, layer + 1);
  }
  train_step();
  const uint64_t first = 1;
  EXPECT_TRUE(repeat_until([&] { train_step(); },
                           [&] { return following().kind > first && following().periods >= 1; }));
  expect_bytes();
}

// The plan goes on being followed, past the ticks that differ. That must not hide the new step.
TEST_F(PlanEngineTest, LearnsAStepInWhichLittleChanged) {
  EXPECT_TRUE(repeat_until([&] { train_step(); }, [&] { return following().periods >= 2; }));
  engine_.free(parameters_[0]);
  parameters_[0] = engine_.allocate(kBytes);
  {
    GateScope op(engine_, {parameters_[0]}, AccessMode::kWrite);
    fill_pattern(parameters_[0], kBytes, 1);
  }
  engine_->gate().on_step();
  const uint64_t extent_id = engine_.extent(parameters_[0])->id;
  EXPECT_TRUE(repeat_until([&] { train_step(); },
                           [&] {
                             const LearnerSummary summary = engine_->learner()->summary();
                             return std::ranges::count(summary.learned->period->extent_ids,
                                                       extent_id) > 0 &&
                                    summary.following.periods >= 1;
                           }));
  expect_bytes();
}

// No step is an exact copy of the one before. That is no reason for ever more plans.
TEST_F(PlanEngineTest, BuffersInTurnGetAPlanEachAtMost) {
  const std::vector<char*> buffers = engine_.written(6, kBytes / 4);
  for (size_t step = 0; step < 60; ++step) {
    op(8, buffers[step % buffers.size()]);
    train_step();
  }
  const LearnerSummary summary = engine_->learner()->summary();
  EXPECT_LE(summary.kinds, buffers.size());
  EXPECT_EQ(summary.dropped, 0u);
  expect_bytes();
}

TEST_F(PlanEngineTest, LearnsAStepThatLacksAPart) {
  constexpr uint32_t kPartTicks = 4;
  std::vector<char*> part;
  for (uint32_t index = 0; index < kPartTicks; ++index) part.push_back(engine_.allocate(kBytes));
  const auto step = [&](bool has_part) {
    for (size_t index = 0; has_part && index < part.size(); ++index) op(7, part[index]);
    train_step();
  };
  EXPECT_TRUE(repeat_until([&] { step(true); }, [&] { return following().periods >= 2; }));
  ASSERT_EQ(engine_->learner()->summary().learned->tick_count(), 5 * kLayers + kPartTicks);
  EXPECT_TRUE(repeat_until([&] { step(false); },
                           [&] {
                             const LearnerSummary summary = engine_->learner()->summary();
                             return summary.learned->tick_count() == 5 * kLayers &&
                                    summary.following.periods >= 1;
                           }));
  expect_bytes();
}

TEST_F(PlanEngineTest, PlansAgainWithWhatItMeasured) {
  EXPECT_TRUE(repeat_until([&] { train_step(); },
                           [&] { return engine_->learner()->summary().replans >= 1; }));
  expect_bytes();
}

TEST(MachineMeterTest, ADiskThatReadsAndWritesInTurnIsMeasuredSo) {
  TestEngine engine;  // nothing moves by itself
  Parts parts;
  parts.heap = &engine->heap();
  parts.mover = engine->mover();
  MachineMeter meter(parts);
  EXPECT_FALSE(meter.measure().is_half_duplex);
  constexpr uint64_t kMovedBytes = 2 * kGiB;
  constexpr uint64_t kMovedNs = 1'000'000'000;
  DuplexMeter& duplex = parts.mover->ledger().duplex;
  uint64_t now = now_ns();
  for (const IoDirection direction : {IoDirection::kRead, IoDirection::kWrite}) {
    const DuplexMeter::Begun begun = duplex.begin(direction, now);
    now += kMovedNs;
    duplex.end(direction, begun, kMovedBytes, now);
  }
  const DuplexMeter::Begun read = duplex.begin(IoDirection::kRead, now);
  const DuplexMeter::Begun write = duplex.begin(IoDirection::kWrite, now);
  duplex.end(IoDirection::kRead, read, kMovedBytes, now + 2 * kMovedNs);
  duplex.end(IoDirection::kWrite, write, kMovedBytes, now + 2 * kMovedNs);
  const Machine machine = meter.measure();
  EXPECT_TRUE(machine.is_half_duplex);
  const double alone = 1e9 * kMovedBytes / kMovedNs;
  EXPECT_NEAR(machine.read_bytes_per_s, alone, 1);
  EXPECT_NEAR(machine.write_bytes_per_s, alone, 1);
  EXPECT_NEAR(machine.gain_of_both, 1, 1e-9);
}

/// Whether the budget that the summary names fits its plan. After a plan is made again, the budget
/// of the plan before stands until it has been looked for anew.
bool names_budget_of_its_plan(const LearnerSummary& summary, uint64_t limit) {
  const uint64_t bytes = summary.stall_free_budget_bytes;
  if (summary.learned == nullptr) return false;
  if (is_stall_free(summary.learned->planned.simulation, 0.01)) return bytes == limit;
  Machine machine = summary.learned->machine.at_speed(1 - kSpeedErrorShare);
  machine.budget_bytes = bytes - headroom_of(bytes);
  const Planned planned = make_plan(summary.learned->period->trace, machine);
  return bytes > limit && is_stall_free(planned.simulation, 0.01);
}

TEST_F(PlanEngineTest, TellsTheBudgetWithWhichItWouldHardlyWait) {
  LearnerSummary found;
  EXPECT_TRUE(repeat_until([&] { train_step(); },
                           [&] {
                             const uint64_t limit = engine_->budget().limit();
                             found = engine_->learner()->summary();
                             if (found.stall_free_budget_bytes == 0) return false;
                             EXPECT_GE(found.stall_free_budget_bytes, limit);
                             EXPECT_GE(found.replans, 1u)
                                 << "only with times measured while a plan was followed";
                             EXPECT_GE(found.following.periods_ever, 4u) << "not in a short run";
                             return names_budget_of_its_plan(found, limit);
                           }));
  ASSERT_NE(found.learned, nullptr);
  EXPECT_LE(found.stall_free_budget_bytes,
            budget_with_headroom(found.learned->period->trace.peak_bytes()));
  // While the period is planned again, the budget stays known.
  const uint64_t replans = found.replans;
  EXPECT_TRUE(repeat_until([&] { train_step(); },
                           [&] {
                             found = engine_->learner()->summary();
                             EXPECT_GT(found.stall_free_budget_bytes, 0u);
                             return found.replans > replans;
                           }));
  expect_bytes();
}

// Whenever a plan is made, a tensor is there that no op has named. The period has it already.
TEST_F(PlanEngineTest, ATensorOfTheStepIsNotFixed) {
  unnamed_ = engine_.allocate(kBytes);
  EXPECT_TRUE(repeat_until([&] { train_step(); },
                           [&] { return engine_->learner()->summary().replans >= 1; }));
  const LearnerSummary summary = engine_->learner()->summary();
  ASSERT_NE(summary.learned, nullptr);
  EXPECT_EQ(summary.learned->period->trace.fixed_bytes, 0u);
  expect_bytes();
}

TEST_F(PlanEngineTest, WhatCannotLeaveIsFixed) {
  engine_.allocate(kBytes);  // no op ever names it
  EXPECT_EQ(engine_->gate().keep_resident({{{parameters_[0], AccessMode::kRead}}}), 1u);
  EXPECT_TRUE(repeat_until([&] { train_step(); },
                           [&] { return engine_->learner()->summary().replans >= 1; }));
  const LearnerSummary summary = engine_->learner()->summary();
  ASSERT_NE(summary.learned, nullptr);
  EXPECT_EQ(summary.learned->period->trace.fixed_bytes, 2 * kBytes);
  expect_bytes();
}

TEST_F(PlanEngineTest, ThreadsThatInterleaveAreNotLearnedAndNotHarmed) {
  auto work = [&](size_t begin) {
    for (int round = 0; round < 20; ++round) {
      for (size_t layer = begin; layer < parameters_.size(); layer += 2) op(7, parameters_[layer]);
    }
  };
  for (int step = 0; step < 3; ++step) train_step();
  std::thread other(work, 1);
  work(0);
  other.join();
  expect_bytes();
}

// A plan made under another budget is replaced long before it would be planned again.
TEST_F(PlanEngineTest, PlansAgainUnderAnotherBudget) {
  // The plans of periods 1, 2, 4 and 8 are made; the next would be that of 16.
  EXPECT_TRUE(repeat_until([&] { train_step(); }, [&] { return following().periods >= 9; }));
  const uint64_t old_bytes = engine_->learner()->summary().learned->machine.budget_bytes;
  engine_->budget().set_limit(kLayers * kBytes);
  engine_->on_budget_change();
  train_step();
  train_step();
  EXPECT_TRUE(eventually([&] {
    return engine_->learner()->summary().learned->machine.budget_bytes > old_bytes * 3 / 2;
  }));
  expect_bytes();
}

/// A base class that holds the first plan back until the test lets the learner go on.
class HeldPlan {
 protected:
  void hold() {
    is_held_ = true;
    while (!may_go_on_) std::this_thread::yield();
  }
  std::atomic<bool> is_held_{false};
  std::atomic<bool> may_go_on_{false};
};

class HeldPlanTest : protected HeldPlan, public PlanEngineTest {
 protected:
  HeldPlanTest()
      : PlanEngineTest([this](CpuEngineConfig& config) {
          config.hooks.on_learned_plan = [this](const LearnedPlan&) { hold(); };
        }) {}
  ~HeldPlanTest() override { may_go_on_ = true; }
};

TEST_F(HeldPlanTest, AGuessFromAnOddStepIsReplacedAfterTwoPlainOnes) {
  constexpr uint32_t kOddTicks = 4;
  train_step();
  for (uint32_t tick = 0; tick < kOddTicks; ++tick) op(7, parameters_[2 * tick]);
  train_step();
  ASSERT_TRUE(eventually([&] { return is_held_.load(); }));
  train_step();
  train_step();
  may_go_on_ = true;
  EXPECT_TRUE(repeat_until([&] { train_step(); },
                           [&] {
                             const LearnerSummary summary = engine_->learner()->summary();
                             return summary.learned != nullptr &&
                                    summary.learned->tick_count() == 5 * kLayers;
                           }));
  expect_bytes();
}

// Each kind differs from all others, and none comes twice in turn.
TEST_F(PlanEngineTest, MoreKindsThanThereIsRoomForAreNotPlannedForEver) {
  constexpr uint32_t kKinds = 20;
  constexpr uint64_t kSmall = 64 * kKiB;
  std::vector<std::vector<char*>> models(kKinds);
  for (std::vector<char*>& model : models) model = engine_.written(8, kSmall);
  for (int round = 0; round < 30; ++round) {
    for (uint32_t kind = 0; kind < kKinds; ++kind) {
      for (char* tensor : models[kind]) op(100 + kind, tensor);
      engine_->gate().on_step();
    }
  }
  EXPECT_LE(engine_->learner()->summary().dropped, 16u) << "a program of few steps drops as many";
}

class PlanChaosTest : public PlanEngineTest {
 protected:
  PlanChaosTest()
      : PlanEngineTest([](CpuEngineConfig& config) {
          config.chaos = ChaosConfig{1, 0.3};
        }) {}
};

TEST_F(PlanChaosTest, BytesAreRightWhileChaosWorksAgainstThePlan) {
  for (int step = 0; step < 8; ++step) train_step();
  expect_bytes();
}

class NoPlanTest : public PlanEngineTest {
 protected:
  NoPlanTest() : PlanEngineTest([](CpuEngineConfig& config) { config.plans = false; }) {}
};

TEST_F(NoPlanTest, NothingIsLearnedWhenPlansAreOff) {
  for (int step = 0; step < 5; ++step) train_step();
  EXPECT_EQ(engine_->learner(), nullptr);
  EXPECT_EQ(engine_.read(engine_.stats().early_fetches), 0u);
  expect_bytes();
}

}  // namespace
}  // namespace tencache
