// SPDX-License-Identifier: Apache-2.0
//
// Properties of an engine over any backend: bytes come back right, pins hold, room is made, the
// budget is exceeded only where one op needs it, freed memory is reused, plans fetch ahead, figures
// add up, threads do not collide. The drivers of the suite are in support/.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "support/cpu_driver.h"
#include "support/cuda/cuda_driver.h"
#include "support/eventually.h"
#include "support/listed_requests.h"
#include "support/stored_period.h"

namespace tencache {
namespace {

template <typename Driver>
class BackendsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = Driver::kTensorBytes;

  ~BackendsTest() override { finish(); }
  void start(const DriverSetup& setup = {}) { driver_ = std::make_unique<Driver>(setup); }
  // Frees everything; books and bytes must be right.
  void finish() {
    if (driver_ == nullptr) return;
    driver_->settle();
    for (char* tensor : std::vector<char*>(tensors_)) free(tensor);
    EXPECT_EQ(driver_->check_books(), "");
    EXPECT_EQ(driver_->differences(), 0u);
    driver_.reset();
  }

  Engine& engine() { return driver_->engine(); }
  const Stats& stats() { return engine().settled_stats(); }
  char* allocate(uint64_t bytes = kBytes) {
    const Result<void*> made = driver_->try_allocate(bytes, 0);
    TENCACHE_CHECK(made.is_ok(), "%s", made.status().message().c_str());
    return tensors_.emplace_back(static_cast<char*>(made.value()));
  }
  // Tensors written with the seeds 0, 1, ...
  std::vector<char*> written(size_t count) {
    std::vector<char*> made;
    for (uint64_t seed = 0; seed < count; ++seed) {
      made.push_back(allocate());
      driver_->write(made.back(), seed, 0);
    }
    driver_->settle();
    return made;
  }
  void free(char* tensor) {
    std::erase(tensors_, tensor);
    driver_->free(tensor);
  }

  Extent* extent(const char* tensor) {
    Extent* const found = engine().heap().find(tensor);
    TENCACHE_CHECK(found != nullptr, "%p is no extent", static_cast<const void*>(tensor));
    return found;
  }
  ExtentState state(const char* tensor) { return extent(tensor)->state(); }
  bool is_cold(const char* tensor) { return state(tensor) == ExtentState::kCold; }
  bool evict(char* tensor) {
    Extent* extents[] = {extent(tensor)};
    extents[0]->set_flags(kFlagSeen);
    return engine().mover()->evict(extents).count == 1;
  }
  size_t prefetch(const std::vector<char*>& tensors) {
    std::vector<MoveRequest> requests;
    for (const char* tensor : tensors) {
      Extent* const wanted = extent(tensor);
      requests.push_back({wanted, wanted->id.load(), wanted->bytes, ~uint64_t{0}});
    }
    const size_t done = tencache::prefetch(*engine().mover(), requests);
    driver_->settle();
    return done;
  }
  void check(char* tensor, uint64_t seed) { driver_->check({tensor}, seed, 0); }
  uint64_t budget_bytes() { return engine().budget().limit(); }

  std::unique_ptr<Driver> driver_;
  std::vector<char*> tensors_;
};

struct BackendNames {
  template <typename Driver>
  static std::string GetName(int) {
    return std::is_same_v<Driver, CpuDriver> ? "cpu" : "cuda";
  }
};

using Drivers = ::testing::Types<CpuDriver, CudaDriver>;
TYPED_TEST_SUITE(BackendsTest, Drivers, BackendNames);

TYPED_TEST(BackendsTest, WhatLeavesComesBackWithItsBytes) {
  this->start();
  char* const tensor = this->written(1)[0];
  ASSERT_TRUE(this->evict(tensor));
  EXPECT_TRUE(this->is_cold(tensor));
  EXPECT_EQ(this->engine().budget().used(), 0u);
  EXPECT_EQ(this->driver_->check_books(), "");
  this->check(tensor, 0);
  this->driver_->settle();
  EXPECT_EQ(this->state(tensor), ExtentState::kResident);
  EXPECT_EQ(this->stats().evicted_bytes, this->kBytes);
  EXPECT_EQ(this->stats().fetched_bytes, this->kBytes);
  // On cuda the tensor may be there before the stream comes to the op that needs it.
  EXPECT_EQ(this->stats().late_fetches + this->stats().early_fetches, 1u);
}

TYPED_TEST(BackendsTest, EachMoveIsLogged) {
  this->start();
  char* const tensor = this->written(1)[0];
  const uint64_t id = this->extent(tensor)->id;
  ASSERT_TRUE(this->evict(tensor));
  this->check(tensor, 0);
  this->driver_->settle();
  ASSERT_TRUE(this->evict(tensor));
  ASSERT_EQ(this->prefetch({tensor}), 1u);
  const KeptMoves kept = this->engine().mover()->ledger().log.kept();
  EXPECT_EQ(kept.lost_count, 0u);
  ASSERT_EQ(kept.moves.size(), 4u);
  std::vector<MoveKind> kinds;
  for (const Move& move : kept.moves) {
    kinds.push_back(move.kind);
    EXPECT_EQ(move.extent_id, id);
    EXPECT_EQ(move.bytes, this->kBytes);
    EXPECT_LE(move.begin, move.end);
    EXPECT_LE(move.device_used_bytes, this->budget_bytes());
  }
  // Where nothing can be proved, each eviction copies.
  const bool is_clean = this->stats().clean_dropped_bytes == this->kBytes;
  const MoveKind second = is_clean ? MoveKind::kDrop : MoveKind::kEvict;
  EXPECT_EQ(kinds,
            (std::vector{MoveKind::kEvict, MoveKind::kFetch, second, MoveKind::kFetchAhead}));
}

// A tensor written after it came back leaves with its new bytes, not with those of the copy below.
TYPED_TEST(BackendsTest, ANewLifeOfTheBytesIsNotTakenForTheOld) {
  this->start();
  char* const tensor = this->written(1)[0];
  for (uint64_t seed = 1; seed < 5; ++seed) {
    ASSERT_TRUE(this->evict(tensor));
    this->check(tensor, seed - 1);
    this->driver_->write(tensor, seed, 0);
    this->driver_->settle();
  }
  ASSERT_TRUE(this->evict(tensor));
  this->check(tensor, 4);
}

TYPED_TEST(BackendsTest, SeveralEnginesMayLiveOneAfterAnother) {
  for (int life = 0; life < 3; ++life) {
    this->start();
    char* const tensor = this->written(1)[0];
    ASSERT_TRUE(this->evict(tensor));
    this->check(tensor, 0);
    this->finish();
  }
}

TYPED_TEST(BackendsTest, PinnedUnseenAndKeptTensorsStay) {
  this->start();
  const std::vector<char*> seen = this->written(2);
  char* const pinned = seen[0];
  char* const kept = seen[1];
  char* const unseen = this->allocate();
  this->engine().gate().keep_resident(std::vector<Access>{{kept, AccessMode::kRead}});
  this->driver_->open({{pinned, AccessMode::kRead}});
  Extent* all[] = {this->extent(pinned), this->extent(unseen), this->extent(kept)};
  EXPECT_EQ(this->engine().mover()->evict(all).count, 0u);
  this->engine().gate().close();
  this->driver_->settle();
  EXPECT_EQ(this->engine().mover()->evict(all).count, 1u) << "the pin is gone";
  EXPECT_TRUE(this->is_cold(pinned));
}

TYPED_TEST(BackendsTest, WhatIsKeptResidentIsSoUntilItIsFreed) {
  this->start();
  char* const kept = this->written(1)[0];
  this->engine().gate().keep_resident(std::vector<Access>{{kept, AccessMode::kRead}});
  EXPECT_FALSE(this->evict(kept));
  this->free(kept);
  char* const next = this->written(1)[0];
  ASSERT_EQ(next, kept) << "the extent is used again";
  EXPECT_TRUE(this->evict(next));
}

TYPED_TEST(BackendsTest, AnOpFindsAllItNamesAndPinsIt) {
  this->start();
  const std::vector<char*> tensors = this->written(3);
  for (char* tensor : tensors) ASSERT_TRUE(this->evict(tensor));
  std::vector<Access> accesses;
  for (char* tensor : tensors) accesses.push_back({tensor, AccessMode::kRead});
  this->driver_->open(accesses);
  this->driver_->settle();
  for (char* tensor : tensors) {
    EXPECT_FALSE(this->is_cold(tensor));
    EXPECT_FALSE(this->evict(tensor)) << "an op is open that names it";
  }
  this->engine().gate().close();
  for (char* tensor : tensors) EXPECT_TRUE(this->evict(tensor));
  this->driver_->check(tensors, 0, 0);
}

TYPED_TEST(BackendsTest, AHoldOutlivesItsOp) {
  this->start();
  char* const tensor = this->written(1)[0];
  ASSERT_TRUE(this->evict(tensor));
  Hold* const hold = this->driver_->hold({{tensor, AccessMode::kRead}});
  ASSERT_NE(hold, nullptr);
  this->driver_->settle();
  EXPECT_FALSE(this->is_cold(tensor));
  EXPECT_FALSE(this->evict(tensor));
  std::jthread([&] { this->engine().gate().unhold(hold); }).join();
  EXPECT_TRUE(this->evict(tensor));
}

TYPED_TEST(BackendsTest, WhatIsFreedIsUsedAgain) {
  this->start();
  char* const first = this->written(1)[0];
  this->free(first);
  EXPECT_EQ(this->engine().heap().cached_bytes(), this->kBytes);
  EXPECT_EQ(this->allocate(), first);
  EXPECT_EQ(this->engine().heap().cached_bytes(), 0u);
  EXPECT_EQ(this->engine().budget().used(), this->kBytes);
}

// A tensor freed while cold leaves nothing on any tier.
TYPED_TEST(BackendsTest, WhatIsFreedColdGivesEverythingBack) {
  this->start();
  char* const tensor = this->written(1)[0];
  ASSERT_TRUE(this->evict(tensor));
  this->free(tensor);
  EXPECT_EQ(this->engine().budget().used(), 0u);
  EXPECT_EQ(this->driver_->check_books(), "");
  char* const next = this->written(1)[0];
  ASSERT_TRUE(this->evict(next));
  this->check(next, 0);
}

TYPED_TEST(BackendsTest, AProgramLargerThanTheBudgetRunsWithinIt) {
  this->start();
  const std::vector<char*> tensors = this->written(40);
  for (int round = 0; round < 3; ++round) {
    for (uint64_t seed = 0; seed < tensors.size(); ++seed) this->check(tensors[seed], seed);
  }
  this->driver_->settle();
  EXPECT_EQ(this->stats().over_budget_events, 0u);
  EXPECT_LE(this->stats().peak_device_bytes, this->budget_bytes());
  EXPECT_GT(this->stats().evicted_bytes, 24 * this->kBytes);
  EXPECT_GT(this->stats().fetched_bytes, 24 * this->kBytes);
}

// Bytes that have left and not come back are cold.
TYPED_TEST(BackendsTest, FiguresAddUp) {
  this->start();
  const std::vector<char*> tensors = this->written(24);
  for (uint64_t seed = 0; seed < tensors.size(); seed += 3) this->check(tensors[seed], seed);
  this->driver_->settle();
  ASSERT_EQ(this->driver_->check_books(), "");
  const Stats& stats = this->stats();
  uint64_t cold_bytes = 0;
  // The prefetcher may be about to move another tensor.
  EXPECT_TRUE(eventually([&] {
    const Demand demand(this->engine().mover()->ledger());
    if (this->engine().prefetcher()->is_at_work()) return false;
    this->engine().mover()->fork_latch().close();
    cold_bytes = 0;
    for (char* tensor : tensors) cold_bytes += this->is_cold(tensor) ? this->kBytes : 0;
    const bool adds_up = stats.evicted_bytes - stats.fetched_bytes == cold_bytes;
    this->engine().mover()->fork_latch().reopen();
    return adds_up;
  })) << stats.evicted_bytes
      << " evicted, " << stats.fetched_bytes << " fetched, " << cold_bytes;
  EXPECT_GE(cold_bytes, 8 * this->kBytes);
  EXPECT_EQ(stats.ops, 24u + 8u);
  EXPECT_EQ(stats.extents_allocated, 24u);
  EXPECT_GE(stats.evicted_bytes, stats.clean_dropped_bytes);
}

// One op may exceed the budget; that is counted.
TYPED_TEST(BackendsTest, OneOpMayExceedTheBudget) {
  this->start({.budget_tensors = 4});
  const std::vector<char*> tensors = this->written(8);
  EXPECT_EQ(this->stats().over_budget_events, 0u);
  this->driver_->check(tensors, 0, 0);
  this->driver_->settle();
  EXPECT_GT(this->stats().over_budget_events, 0u);
  EXPECT_EQ(this->stats().over_budget_peak_bytes, 4 * this->kBytes);
  for (char* tensor : tensors) this->free(tensor);
  this->driver_->write(this->allocate(2 * this->kBytes), 1, 0);
  // A device may have to be done with freed memory first.
  EXPECT_TRUE(eventually([&] { return this->engine().budget().used() <= this->budget_bytes(); }));
}

TYPED_TEST(BackendsTest, StrictIsAnErrorAtTheBudget) {
  this->start({.budget_tensors = 4, .strict = true});
  for (int count = 0; count < 4; ++count) this->allocate();
  const Result<void*> refused = this->driver_->try_allocate(this->kBytes, 0);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  const std::string& text = refused.status().message();
  EXPECT_NE(text.find("out of memory."), std::string::npos) << text;
  EXPECT_NE(text.find(format_bytes(this->budget_bytes())), std::string::npos) << text;
  EXPECT_NE(text.find("--strict"), std::string::npos) << text;
  EXPECT_EQ(this->engine().mover(), nullptr);
  EXPECT_EQ(this->stats().evicted_bytes, 0u);
}

TYPED_TEST(BackendsTest, ChaosChangesNoByte) {
  this->start({.chaos = ChaosConfig{1, 1.0}});
  const std::vector<char*> tensors = this->written(10);
  for (uint64_t seed = 0; seed + 1 < tensors.size(); ++seed) {
    this->driver_->check({tensors[seed], tensors[seed + 1]}, seed, 0);
    this->driver_->settle();
  }
  EXPECT_GT(this->stats().chaos_evictions, 15u);
}

TYPED_TEST(BackendsTest, EachFetchIsEarlyLateOrWasted) {
  this->start();
  const std::vector<char*> tensors = this->written(3);
  for (char* tensor : tensors) ASSERT_TRUE(this->evict(tensor));
  EXPECT_EQ(this->prefetch({tensors[0], tensors[1]}), 2u);
  for (int index : {0, 1}) EXPECT_EQ(this->state(tensors[index]), ExtentState::kResident);
  this->check(tensors[0], 0);
  this->check(tensors[0], 0);
  EXPECT_TRUE(this->evict(tensors[1]));
  this->check(tensors[2], 2);
  this->driver_->settle();
  const Stats& stats = this->stats();
  // On cuda the last tensor may be there before the stream comes to the op that needs it.
  EXPECT_GE(stats.early_fetches, 1u);
  EXPECT_EQ(stats.early_fetched_bytes, stats.early_fetches * this->kBytes);
  EXPECT_EQ(stats.wasted_fetches, 1u);
  EXPECT_EQ(stats.wasted_fetched_bytes, this->kBytes);
  EXPECT_EQ(stats.early_fetches + stats.late_fetches, 2u);
}

// A loop is learned, and its next tensors arrive before an op asks for them.
TYPED_TEST(BackendsTest, PlansFetchEarly) {
  this->start({.budget_tensors = 7});
  this->engine().evictor().arm();
  const std::vector<char*> tensors = this->written(12);
  // How long an op lasts, so that other tensors can be fetched. A slow machine needs longer.
  std::chrono::nanoseconds work = std::chrono::milliseconds(2);
  const auto step = [&] {
    for (uint64_t seed = 0; seed < tensors.size(); ++seed) {
      this->check(tensors[seed], seed);
      std::this_thread::sleep_for(work);
    }
    this->engine().gate().on_step();
  };
  // Until a plan is followed well, some fetches are late or wasted; then most are early.
  constexpr uint64_t kRounds = 8;
  const auto has_settled = [&] {
    const uint64_t early_before = this->stats().early_fetches;
    const uint64_t late_before = this->stats().late_fetches;
    const uint64_t wasted_before = this->stats().wasted_fetches;
    for (uint64_t round = 0; round < kRounds; ++round) step();
    const uint64_t early = this->stats().early_fetches - early_before;
    work += work / 2;
    return early > 2 * kRounds && early > this->stats().late_fetches - late_before &&
           early > 4 * (this->stats().wasted_fetches - wasted_before);
  };
  EXPECT_TRUE(eventually(has_settled))
      << this->stats().early_fetches << " early, " << this->stats().late_fetches << " late, "
      << this->stats().wasted_fetches << " in vain";
  EXPECT_LE(this->stats().peak_device_bytes, this->budget_bytes());
}

TYPED_TEST(BackendsTest, AStoredPeriodIsFollowedFromTheFirstStep) {
  const auto step = [this](const std::vector<char*>& tensors) {
    for (uint64_t seed = 0; seed < tensors.size(); ++seed) this->check(tensors[seed], seed);
    this->engine().gate().on_step();
  };
  const auto summary = [this] { return this->engine().learner()->summary(); };
  this->start({.budget_tensors = 7});
  this->engine().evictor().arm();
  const std::vector<char*> earlier = this->written(12);
  ASSERT_TRUE(eventually([&] {
    step(earlier);
    return summary().kinds > 0;
  }));
  const auto stored = std::make_shared<const Period>(as_stored(*summary().learned->period));
  this->finish();
  this->start({.budget_tensors = 7, .stored_period = stored});
  ASSERT_TRUE(eventually([&] { return summary().kinds == 1; })) << "planned before any op";
  EXPECT_FALSE(this->engine().evictor().is_armed());
  const std::vector<char*> tensors = this->written(12);
  EXPECT_TRUE(this->engine().evictor().is_armed());
  step(tensors);
  EXPECT_EQ(summary().following.stored_ticks_followed, tensors.size() - 3);
  EXPECT_EQ(summary().following.lost, 0u);
}

TYPED_TEST(BackendsTest, ThreadsShareTheRoom) {
  this->start();
  constexpr uint64_t kEach = 12;
  std::vector<std::vector<char*>> made(TypeParam::kLanes);
  std::vector<std::jthread> threads;
  for (size_t lane = 0; lane < TypeParam::kLanes; ++lane) {
    threads.emplace_back([this, lane, &made] {
      std::vector<char*>& mine = made[lane];
      for (uint64_t round = 0; round < kEach; ++round) {
        const Result<void*> address = this->driver_->try_allocate(this->kBytes, lane);
        ASSERT_TRUE(address.is_ok()) << address.status().message();
        mine.push_back(static_cast<char*>(address.value()));
        this->driver_->write(mine.back(), lane * 100 + round, lane);
      }
      for (uint64_t round = 0; round < kEach; ++round) {
        this->driver_->check({mine[round]}, lane * 100 + round, lane);
      }
    });
  }
  threads.clear();
  this->driver_->settle();
  EXPECT_EQ(this->stats().over_budget_events, 0u);
  EXPECT_LE(this->stats().peak_device_bytes, this->budget_bytes());
  for (const auto& tensors : made) {
    for (char* tensor : tensors) this->driver_->free(tensor);
  }
}

}  // namespace
}  // namespace tencache
