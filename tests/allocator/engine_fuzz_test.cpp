// SPDX-License-Identifier: Apache-2.0
//
// Random programs on a small engine against a model that has a plain copy of every byte
// (support/allocation_model.h). The evictor works under pressure all the time; the disk is small
// and fails now and then. Pages of evicted extents are given back in some runs, parked in others
// (userfaultfd). TENCACHE_TEST_SEED repeats a run, TENCACHE_TEST_STEPS makes it longer.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "platform/access_barrier.h"
#include "support/allocation_model.h"
#include "support/random.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

uint64_t step_count() {
  if (const char* text = std::getenv("TENCACHE_TEST_STEPS")) return strtoull(text, nullptr, 10);
  return kHasSanitizer ? 10'000 : 25'000;
}

/// Returns an error text if use has exceeded the budget by more than the counted excess, else "".
std::string check_budget(TestEngine& engine) {
  const uint64_t limit = engine->budget().limit();
  const uint64_t excess = engine.read(engine.stats().over_budget_peak_bytes);
  const uint64_t peak = engine.read(engine.stats().peak_device_bytes);
  if (peak > limit + excess) {
    return "a peak of " + std::to_string(peak) + " with " + std::to_string(excess) +
           " counted over the budget of " + std::to_string(limit);
  }
  return "";
}

class EngineFuzzTest : public ::testing::TestWithParam<Choice> {
 protected:
  void SetUp() override {
    if (GetParam() == Choice::kOn && !AccessBarrier::open().is_ok()) {
      GTEST_SKIP() << "userfaultfd is not allowed here";
    }
  }
  static void tighten(CpuEngineConfig& config) {
    config.budget_bytes = 8 * kMiB;
    config.disk->quota_bytes = 12 * kMiB;
    config.userfaultfd = GetParam();
  }
};
INSTANTIATE_TEST_SUITE_P(Userfaultfd, EngineFuzzTest, ::testing::Values(Choice::kOff, Choice::kOn),
                         [](const auto& choice) {
                           return choice.param == Choice::kOn ? "on" : "off";
                         });

/// Makes the next writes fail or slow now and then.
void trouble_disk(FaultPlan& plan, Random& random) {
  plan.clear();
  if (random.chance(0.5)) return;
  Fault fault;
  fault.direction = IoDirection::kWrite;
  fault.first = random.between(1, 40);
  fault.every = random.between(1, 20);
  fault.count = random.between(1, 5);
  fault.kind = random.chance(0.8) ? FaultKind::kFail : FaultKind::kDelay;
  fault.error_number = random.chance(0.5) ? EIO : ENOSPC;
  plan.add(fault);
}

TEST_P(EngineFuzzTest, BytesAreRightWhateverHappens) {
  Random random;
  auto plan = std::make_shared<FaultPlan>();
  TestEngine engine([&plan](CpuEngineConfig& config) {
    tighten(config);
    config.disk->channel_factory = faulty_channel_factory(plan);
  });
  AllocationModel model(engine, random, {});
  const uint64_t steps = step_count();
  for (uint64_t step = 0; step < steps; ++step) {
    ASSERT_EQ(model.step(), "") << "at step " << step;
    if (step % 500 == 0) {
      trouble_disk(*plan, random);
      ASSERT_EQ(check_budget(engine), "") << "at step " << step;
      ASSERT_EQ(engine.check_books(model.small_bytes()), "") << "at step " << step;
    }
  }
  plan->clear();
  ASSERT_EQ(model.finish(), "");
  EXPECT_EQ(engine.check_books(model.small_bytes()), "");
  EXPECT_GT(engine.read(engine.stats().evicted_bytes), 0u);
  EXPECT_GT(engine.read(engine.stats().fetched_bytes), 0u);
  EXPECT_GT(engine.read(engine.stats().clean_dropped_bytes), 0u);
  EXPECT_GT(engine.read(engine.stats().unannounced_writes), 0u);
  EXPECT_GT(engine.read(engine.stats().eviction_failures), 0u);
}

// Each thread has its own extents; a few more are read by all of them.
TEST_P(EngineFuzzTest, BytesAreRightOnSeveralThreads) {
  constexpr int kThreads = 3;
  constexpr int kShared = 4;
  constexpr uint64_t kSharedBytes = 512 * kKiB;
  TestEngine engine(tighten);
  std::vector<char*> shared;
  for (uint64_t index = 0; index < kShared; ++index) {
    shared.push_back(engine.allocate(kSharedBytes));
    fill_pattern(shared.back(), kSharedBytes, index);
  }
  const uint64_t seed_printed = test_seed();
  std::vector<std::string> faults(kThreads);
  {
    std::vector<std::jthread> threads;
    for (int index = 0; index < kThreads; ++index) {
      threads.emplace_back([&, index] {
        Random random(static_cast<uint64_t>(index) + 1);
        AllocationModel::Limits limits;
        limits.live_bytes_max = 5 * kMiB;
        limits.kept_bytes_max = kMiB / 4;
        limits.weights.evict_all = index == 0 ? 1 : 0;
        AllocationModel model(engine, random, limits);
        for (uint64_t other = 0; other < kShared; ++other) {
          model.share(shared[other], kSharedBytes, other);
        }
        for (uint64_t step = 0; step < step_count() / 5 && faults[index].empty(); ++step) {
          faults[index] = model.step();
        }
        if (faults[index].empty()) faults[index] = model.finish();
      });
    }
  }
  for (const std::string& fault : faults) EXPECT_EQ(fault, "") << "seed " << seed_printed;
  EXPECT_EQ(check_budget(engine), "");
  EXPECT_EQ(engine.check_books(), "");
  EXPECT_GT(engine.read(engine.stats().evicted_bytes), 0u);
  for (char* address : shared) engine.free(address);
}

}  // namespace
}  // namespace tencache
