// SPDX-License-Identifier: Apache-2.0
//
// What is pinned between open and close, and for how long: inputs, inner allocations, holds. The
// last tests look at the state of a thread when the thread or the gate ends first.
#include "engine/gate/gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "support/test_engine.h"

namespace tencache {
namespace {

class GateTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 64 * kKiB;

  void SetUp() override {
    a_ = engine_.allocate(kBytes);
    b_ = engine_.allocate(kBytes);
    engine_->evictor().arm();  // from here on the gate hears of allocations
    ASSERT_TRUE(engine_->evictor().is_armed());
  }
  Gate& gate() { return engine_->gate(); }
  uint64_t pins(const void* address) const {
    return Extent::pins_of(engine_.extent(address)->load());
  }
  bool has(const void* address, uint64_t flag) const { return engine_.extent(address)->has(flag); }

  TestEngine engine_;
  char* a_ = nullptr;
  char* b_ = nullptr;
};

TEST_F(GateTest, InputsArePinnedWhileTheirOpIsOpen) {
  {
    const GateScope outer(engine_, {a_});
    EXPECT_EQ(pins(a_), 1u);
    {
      const GateScope inner(engine_, {a_ + 100, b_});
      EXPECT_EQ(pins(a_), 2u);
      EXPECT_EQ(pins(b_), 1u);
    }
    EXPECT_EQ(pins(a_), 1u);
    EXPECT_EQ(pins(b_), 0u);
  }
  EXPECT_EQ(pins(a_), 0u);
}

// Two threads close their ops in another order than they read the clock.
TEST_F(GateTest, TheLastUseIsNeverMadeEarlier) {
  constexpr uint64_t kLater = uint64_t{1} << 62;
  {
    const GateScope op(engine_, {a_});
    engine_.extent(a_)->last_use_at.store(kLater);
  }
  EXPECT_EQ(engine_.extent(a_)->last_use_at.load(), kLater);
}

// There is one gate for each GPU: an op passes all of them, each with its own open ops and pins.
TEST_F(GateTest, AThreadPassesSeveralGatesAtOnce) {
  TestEngine other;
  char* c = other.allocate(kBytes);
  const auto other_pins = [&] { return Extent::pins_of(other.extent(c)->load()); };
  {
    const GateScope outer(engine_, {a_});
    const GateScope outer_of_other(other, {c});
    {
      const GateScope inner(engine_, {a_});
      const GateScope inner_of_other(other, {c});
      EXPECT_EQ(pins(a_), 2u);
      EXPECT_EQ(other_pins(), 2u);
      std::thread([&] { engine_.use({a_}), other.use({c}), engine_.use({a_}); }).join();
    }
    EXPECT_EQ(pins(a_), 1u);
    EXPECT_EQ(other_pins(), 1u);
    char* inner = engine_.allocate(kBytes);
    EXPECT_EQ(pins(inner), 1u) << "the op is open here still";
  }
  EXPECT_EQ(pins(a_), 0u);
  EXPECT_EQ(other_pins(), 0u);
}

TEST_F(GateTest, StatesOfGatesThatAreGoneAreDropped) {
  for (int round = 0; round < 3; ++round) {
    TestEngine other;
    other.use({other.allocate(kBytes)});
    engine_.use({a_});
  }
  EXPECT_EQ(engine_->recorder().snapshot().size(), 1u) << "one ring serves the thread all along";
}

TEST_F(GateTest, AccessesSetTheirFlags) {
  engine_.extent(a_)->last_use_at = 0;
  gate().open(0, std::vector<Access>{{a_, AccessMode::kName}});
  EXPECT_EQ(pins(a_), 0u) << "a view touches no byte";
  EXPECT_TRUE(has(a_, kFlagSeen));
  EXPECT_GT(engine_.extent(a_)->last_use_at, 0u) << "who knows what used it before";
  EXPECT_FALSE(has(a_, kFlagDirty));
  gate().close();
  engine_.use({a_});
  EXPECT_FALSE(has(a_, kFlagDirty));
  EXPECT_FALSE(has(b_, kFlagSeen));
  engine_.use({b_}, AccessMode::kReadWrite);
  EXPECT_TRUE(has(b_, kFlagSeen));
  EXPECT_TRUE(has(b_, kFlagDirty));
}

TEST_F(GateTest, OtherAddressesAreIgnored) {
  int local = 0;
  engine_.use(
      {nullptr, &local, engine_.device().arena().base() + engine_.device().arena().bytes() - 1});
  EXPECT_EQ(engine_->settled_stats().ops, 1u);
}

TEST_F(GateTest, ColdInputsAreResidentWhenOpenReturns) {
  fill_pattern(a_, kBytes, 1);
  ASSERT_TRUE(engine_.evict(a_));
  const GateScope op(engine_, {b_, a_, a_});
  EXPECT_TRUE(engine_.is_resident(a_));
  EXPECT_TRUE(has_pattern(a_, kBytes, 1));
  EXPECT_FALSE(engine_.evict(a_));
  EXPECT_EQ(engine_.read(engine_.stats().late_fetches), 1u);
  EXPECT_GT(engine_.read(engine_.stats().stall_ns), 0u);
}

TEST_F(GateTest, UseIsTheMomentOfTheClose) {
  std::optional<GateScope> op;
  op.emplace(engine_, std::initializer_list<const void*>{a_});
  const uint64_t opened = engine_.extent(a_)->last_use_at;
  op.reset();
  EXPECT_GT(engine_.extent(a_)->last_use_at, opened);
}

TEST_F(GateTest, InnerAllocationsArePinnedUntilTheOutermostOpEnds) {
  char* outside = engine_.allocate(kBytes);
  EXPECT_EQ(pins(outside), 0u);
  char* inner = nullptr;
  {
    const GateScope outer(engine_, {a_});
    {
      const GateScope nested(engine_, {b_});
      inner = engine_.allocate(2 * kBytes);
      EXPECT_EQ(pins(inner), 1u);
    }
    EXPECT_EQ(pins(inner), 1u) << "the nested op's end releases nothing that it allocated";
  }
  EXPECT_EQ(pins(inner), 0u);
}

TEST_F(GateTest, WhatAnOpFreesOfItsOwnServesOthersAtOnce) {
  const GateScope op(engine_, {a_});
  char* const kept = engine_.allocate(kBytes);
  char* const freed = engine_.allocate(kBytes);
  Extent* const extent = engine_.extent(freed);
  {
    const GateScope nested(engine_, {kept, freed});
    engine_.free(freed);
    EXPECT_EQ(Extent::pins_of(extent->load()), 1u) << "the nested op named it";
  }
  EXPECT_EQ(Extent::pins_of(extent->load()), 0u);
  EXPECT_EQ(pins(kept), 1u);
  EXPECT_EQ(engine_->heap().drop_cached(kBytes), kBytes);
}

TEST_F(GateTest, AThreadsFreeLeavesThePinsOfAnother) {
  const GateScope op(engine_, {a_});
  char* const inner = engine_.allocate(kBytes);
  Extent* const extent = engine_.extent(inner);
  std::thread([&] { engine_.free(inner); }).join();
  EXPECT_EQ(Extent::pins_of(extent->load()), 1u);
  ASSERT_EQ(engine_.allocate(kBytes), inner);
  EXPECT_EQ(pins(inner), 2u);
  engine_.free(inner);
  EXPECT_EQ(Extent::pins_of(extent->load()), 1u) << "which goes with the op";
}

TEST_F(GateTest, AmongVeryManyThePinOfWhatIsFreedGoesWithTheOp) {
  Extent* extent = nullptr;
  {
    const GateScope op(engine_, {a_});
    char* const first = engine_.allocate(2 * kBytes);
    extent = engine_.extent(first);
    std::vector<char*> others;
    for (int count = 0; count < 300; ++count) others.push_back(engine_.allocate(kPageBytes));
    engine_.free(first);
    EXPECT_LE(Extent::pins_of(extent->load()), 1u);
    for (char* other : others) engine_.free(other);
  }
  EXPECT_EQ(Extent::pins_of(extent->load()), 0u);
}

TEST_F(GateTest, ExtentFreedInsideItsOpIsCachedAndTrimmedAfterIt) {
  {
    const GateScope op(engine_, {a_});
    engine_.free(a_);
    EXPECT_EQ(engine_->heap().drop_cached(kBytes), 0u);
    // The extent is reused at once, with the old op's pin.
    EXPECT_EQ(engine_.allocate(kBytes), a_);
    EXPECT_EQ(pins(a_), 2u);
  }
  EXPECT_EQ(pins(a_), 0u);
  engine_.free(a_);
  EXPECT_EQ(engine_->heap().drop_cached(kBytes), kBytes);
}

TEST_F(GateTest, HoldOutlivesItsOp) {
  fill_pattern(a_, kBytes, 1);
  ASSERT_TRUE(engine_.evict(a_));
  Hold* hold = gate().hold(std::vector<Access>{{a_, AccessMode::kRead}}, false);
  ASSERT_NE(hold, nullptr);
  EXPECT_TRUE(engine_.is_resident(a_));
  EXPECT_FALSE(engine_.evict(a_));
  const uint64_t used = engine_.extent(a_)->last_use_at;
  std::jthread([&] { gate().unhold(hold); }).join();
  EXPECT_GT(engine_.extent(a_)->last_use_at, used);
  EXPECT_TRUE(engine_.evict(a_));
}

TEST_F(GateTest, HoldOfNothingIsNull) {
  EXPECT_EQ(gate().hold({}, true), nullptr);
  EXPECT_EQ(gate().hold(std::vector<Access>{{a_, AccessMode::kName}}, false), nullptr);
  gate().unhold(nullptr);
  EXPECT_EQ(pins(a_), 0u);
}

// A collective may have freed some of its allocations before its Work is held, also on another
// thread.
TEST_F(GateTest, HoldOfInnerAllocationsLeavesOutTheFreedOnes) {
  char* kept = nullptr;
  char* freed = nullptr;
  Hold* hold = nullptr;
  {
    const GateScope op(engine_, {a_});
    kept = engine_.allocate(2 * kBytes);
    freed = engine_.allocate(3 * kBytes);
    std::thread([&] { engine_.free(freed); }).join();
    engine_.free(engine_.allocate(4 * kBytes));
    hold = gate().hold({}, true);
  }
  ASSERT_NE(hold, nullptr);
  EXPECT_EQ(pins(kept), 1u);
  EXPECT_EQ(engine_->heap().drop_cached(~uint64_t{0}), 7 * kBytes);
  gate().unhold(hold);
  EXPECT_EQ(pins(kept), 0u);
  EXPECT_EQ(engine_.check_books(), "");
}

TEST_F(GateTest, KeptExtentIsNotEvictedUntilItIsFreed) {
  gate().keep_resident(std::vector<Access>{{a_, AccessMode::kRead}});
  EXPECT_FALSE(engine_.evict(a_));
  engine_.free(a_);
  ASSERT_EQ(engine_.allocate(kBytes), a_);
  EXPECT_TRUE(engine_.evict(a_));
}

TEST_F(GateTest, CurrentOpIsTheInnermost) {
  EXPECT_EQ(gate().current_op(), "");
  const uint32_t linear = engine_->recorder().register_op("aten::linear");
  const uint32_t mm = engine_->recorder().register_op("aten::mm");
  const GateScope outer(engine_, std::vector<Access>{}, linear);
  {
    const GateScope inner(engine_, std::vector<Access>{}, mm);
    EXPECT_EQ(gate().current_op(), "aten::mm");
    std::jthread([&] { EXPECT_EQ(gate().current_op(), ""); }).join();
  }
  EXPECT_EQ(gate().current_op(), "aten::linear");
}

TEST_F(GateTest, EventsAreRecordedInOrder) {
  const uint32_t mm = engine_->recorder().register_op("aten::mm");
  {
    const GateScope op(engine_,
                       std::vector<Access>{{a_, AccessMode::kRead}, {b_, AccessMode::kWrite}}, mm);
    engine_.free(engine_.allocate(2 * kBytes));
  }
  gate().on_step();
  const std::vector<ThreadEvents> threads = engine_->recorder().snapshot();
  ASSERT_EQ(threads.size(), 1u);
  std::vector<EventKind> kinds;
  for (const Event& event : threads[0].events) kinds.push_back(event.kind);
  using enum EventKind;
  EXPECT_EQ(kinds,
            (std::vector<EventKind>{kOpBegin, kRead, kWrite, kAllocate, kFree, kOpEnd, kStep}));
  EXPECT_EQ(threads[0].events[0].op, mm);
  EXPECT_EQ(threads[0].events[1].extent_id, engine_.extent(a_)->id);
  EXPECT_EQ(threads[0].events[2].bytes, kBytes);
  EXPECT_EQ(engine_.read(engine_.stats().steps), 1u);
}

TEST_F(GateTest, PassiveGateDoesNothing) {
  gate().become_passive();
  gate().open(0, std::vector<Access>{{a_, AccessMode::kRead}});
  EXPECT_EQ(pins(a_), 0u);
  EXPECT_EQ(gate().hold(std::vector<Access>{{a_, AccessMode::kRead}}, true), nullptr);
  gate().close();
  gate().close();  // an op that was open when the process was forked
  EXPECT_TRUE(engine_->recorder().snapshot().empty());
}

// The engines are made in the process that is to die, because a gate is passive in a forked child.
TEST(GateDeathTest, MoreClosesThanOpensAreNamed) {
  const TestDirectory directory;
  EXPECT_DEATH(
      {
        TestEngine engine(
            [&](CpuEngineConfig& config) { config.disk->directory = directory.path(); });
        engine->gate().close();
      },
      "the gate was closed more often than opened");
}

TEST(GateDeathTest, UseOfFreedMemoryIsNamed) {
  const TestDirectory directory;
  EXPECT_DEATH(
      {
        TestEngine engine(
            [&](CpuEngineConfig& config) { config.disk->directory = directory.path(); });
        char* address = engine.allocate(kMiB);
        engine.free(address);
        engine.use({address});
      },
      "an op uses freed memory at 0x");
}

// ---- Threads that end ----------------------------------------------------------------------

TEST_F(GateTest, RingsOfEndedThreadsAreReused) {
  for (int round = 0; round < 5; ++round) {
    std::jthread([this] { engine_.use({a_}); }).join();
  }
  const std::vector<ThreadEvents> threads = engine_->recorder().snapshot();
  ASSERT_EQ(threads.size(), 1u);
  EXPECT_EQ(threads[0].events.size(), 15u) << "and lose no event";
}

/// An object that frees an extent when its thread ends, as a thread-local tensor does.
struct FreeAtThreadExit {
  ~FreeAtThreadExit() {
    if (engine != nullptr) engine->free(address);
  }
  TestEngine* engine = nullptr;
  char* address = nullptr;
};

TEST_F(GateTest, ThreadLocalsMayFreeAfterTheThreadsStateIsGone) {
  for (int round = 0; round < 3; ++round) {
    char* address = engine_.allocate(kBytes * 2);
    std::jthread([this, address] {
      thread_local FreeAtThreadExit last;  // made before the thread's first op, so destroyed last
      last.engine = &engine_;
      last.address = address;
      engine_.use({address});
    }).join();
    EXPECT_EQ(engine_.state(address), ExtentState::kCached);
  }
  EXPECT_EQ(engine_->recorder().snapshot().size(), 2u) << "this thread's and a reused one";
}

TEST(GateLifeTest, ThreadMayOutliveItsGateAndMeetTheNext) {
  auto first = std::make_unique<TestEngine>();
  std::atomic<int> stage{0};
  std::unique_ptr<TestEngine> second;
  std::jthread thread([&] {
    char* address = first->allocate(kPageBytes);
    first->use({address});
    stage.store(1);
    stage.notify_all();
    stage.wait(1);
    char* other = second->allocate(kPageBytes);
    second->use({other});
  });
  stage.wait(0);
  first.reset();
  second = std::make_unique<TestEngine>();
  stage.store(2);
  stage.notify_all();
  thread.join();
  EXPECT_EQ((*second)->recorder().snapshot().size(), 1u);
  second.reset();
  // Here this thread gets a state of its own. When the process ends, that state is looked at,
  // although its gate is gone.
  TestEngine third;
  third.use({third.allocate(kPageBytes)});
}

TEST(GateLifeTest, ThreadMayEndAfterItsGate) {
  auto engine = std::make_unique<TestEngine>();
  std::atomic<int> stage{0};
  std::jthread thread([&] {
    engine->use({engine->allocate(kPageBytes)});
    stage.store(1);
    stage.notify_all();
    stage.wait(1);
  });
  stage.wait(0);
  engine.reset();
  stage.store(2);
  stage.notify_all();
}

}  // namespace
}  // namespace tencache
