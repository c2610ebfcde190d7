// SPDX-License-Identifier: Apache-2.0
//
// A disk that takes nothing for a while: threads that need room wait for it as long as they were
// told to, and get it; nobody else waits for them; and the budget holds. Clocks are the test's.
#include "engine/plan/disk_patience.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "memory/budget.h"
#include "support/eventually.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBudget = 32 * kMiB;
constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kForEver = 1'000'000 * kSecond;
constexpr uint64_t kBlockBytes = 1024;  // below an extent's size

std::atomic<uint64_t> g_now_ns{0};
std::atomic<uint64_t> g_step_ns{0};
std::atomic<uint64_t> g_looks{0};

/// A clock that moves on by a step at each look.
uint64_t played_clock() {
  g_looks.fetch_add(1);
  return g_now_ns.fetch_add(g_step_ns.load());
}

class DiskPatienceTest : public ::testing::Test {
 protected:
  void start(uint64_t wait_ns, uint64_t step_ns,
             const std::function<void(CpuEngineConfig&)>& more = {}) {
    g_step_ns = step_ns;
    g_looks = 0;
    engine_.emplace([&](CpuEngineConfig& config) {
      config.budget_bytes = kBudget;
      config.disk->channel_factory = faulty_channel_factory(plan_);
      config.disk_patience = {wait_ns, &played_clock, std::chrono::microseconds(100)};
      if (more) more(config);
    });
  }
  TestEngine& engine() { return *engine_; }

  void expect_intact(const std::vector<char*>& addresses) {
    for (uint64_t index = 0; index < addresses.size(); ++index) {
      EXPECT_TRUE(has_pattern(addresses[index], kMiB, index)) << index;
    }
  }
  uint64_t transfers() const { return plan_->transfers(IoDirection::kWrite); }

  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  std::optional<TestEngine> engine_;
};

TEST_F(DiskPatienceTest, AnAllocationWaitsUntilTheDiskTakesTensorsAgain) {
  for (const int error_number : {ENOSPC, EDQUOT, EIO, EROFS, EINTR, EAGAIN}) {
    SCOPED_TRACE(error_number);
    plan_->clear();
    start(kForEver, 0);
    plan_->add({.count = 60, .error_number = error_number});
    const std::vector<char*> addresses = engine().written(31, kMiB);
    EXPECT_TRUE(engine()->allocate(8 * kMiB).is_ok());
    EXPECT_EQ(plan_->injected(), 60U);
    EXPECT_FALSE(engine().device().disk()->is_failing());
    EXPECT_LE(engine().read(engine().stats().peak_device_bytes), kBudget);
    EXPECT_EQ(engine().read(engine().stats().over_budget_events), 0U);
    expect_intact(addresses);
    EXPECT_EQ(engine().check_books(), "");
  }
}

TEST_F(DiskPatienceTest, AFetchWaitsToo) {
  start(kForEver, 0);
  const std::vector<char*> addresses = engine().written(60, kMiB);
  ASSERT_TRUE(engine().is_cold(addresses[0]));
  plan_->clear();
  plan_->add({.count = 60, .error_number = ENOSPC});
  for (uint64_t index = 0; index < 60; ++index) {
    const GateScope op(engine(), {addresses[index]}, AccessMode::kWrite);
    ASSERT_TRUE(has_pattern(addresses[index], kMiB, index)) << index;
  }
  EXPECT_EQ(plan_->injected(), 60U);
  EXPECT_LE(engine().read(engine().stats().peak_device_bytes), kBudget);
  EXPECT_EQ(engine().read(engine().stats().over_budget_events), 0U);
}

TEST_F(DiskPatienceTest, RoomThatComesBackOnTheDiskIsUsed) {
  std::atomic<uint64_t> free_bytes{0};
  start(kForEver, 0, [&](CpuEngineConfig& config) {
    config.disk->quota_bytes.reset();
    config.disk->free_bytes = [&free_bytes] { return free_bytes.load(); };
  });
  const std::vector<char*> addresses = engine().written(31, kMiB);
  std::thread others([&] {
    ASSERT_TRUE(eventually([] { return g_looks.load() > 3; }));
    free_bytes = kGiB;
  });
  EXPECT_TRUE(engine()->allocate(8 * kMiB).is_ok());
  others.join();
  EXPECT_LE(engine().read(engine().stats().peak_device_bytes), kBudget);
  expect_intact(addresses);
}

TEST_F(DiskPatienceTest, TheWaitEndsWithAnErrorAndNoOtherWaitFollows) {
  start(30 * kSecond, 10 * kSecond);
  plan_->add({.error_number = EROFS});
  const std::vector<char*> addresses = engine().written(31, kMiB);
  const Result<void*> refused = engine()->allocate(8 * kMiB);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  for (const std::string& part :
       {std::string("out of memory"), std::string("Read-only file system"),
        engine().device().disk()->directory(), std::string("30s later, --disk-wait")}) {
    EXPECT_NE(refused.status().message().find(part), std::string::npos)
        << part << " is not in: " << refused.status().message();
  }
  EXPECT_EQ(g_looks.load(), 4U) << "at 0, 10, 20 and 30 s";
  const uint64_t tries = transfers();
  EXPECT_FALSE(engine()->allocate(8 * kMiB).is_ok());
  EXPECT_GT(transfers(), tries) << "each request tries once";
  EXPECT_EQ(g_looks.load(), 4U) << "and waits no more";
  plan_->clear();
  char* made = engine().allocate(8 * kMiB);
  engine().free(made);
  expect_intact(addresses);
  // When the disk fails again, threads wait anew.
  plan_->add({.error_number = EROFS});
  engine().written(8, kMiB);
  EXPECT_FALSE(engine()->allocate(16 * kMiB).is_ok());
  EXPECT_EQ(g_looks.load(), 8U);
  EXPECT_LE(engine().read(engine().stats().peak_device_bytes), kBudget);
  EXPECT_EQ(engine().check_books(), "");
}

TEST_F(DiskPatienceTest, AQuotaThatWasGivenIsNoReasonToWait) {
  start(kForEver, 0, [](CpuEngineConfig& config) { config.disk->quota_bytes = 4 * kMiB; });
  engine().written(31, kMiB);
  const Result<void*> refused = engine()->allocate(16 * kMiB);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_NE(refused.status().message().find("quota of 4.00 MiB"), std::string::npos);
  EXPECT_EQ(g_looks.load(), 0U);
}

TEST_F(DiskPatienceTest, WhileAThreadWaitsOthersGoOn) {
  start(kForEver, 0);
  plan_->add({.error_number = ENOSPC});  // from the start, so that nothing has left before
  const std::vector<char*> addresses = engine().written(31, kMiB);
  std::atomic<bool> has_room{false};
  std::thread waiter([&] { has_room = engine()->allocate(8 * kMiB).is_ok(); });
  ASSERT_TRUE(eventually([] { return g_looks.load() > 3; }));
  engine().use({addresses[30]}, AccessMode::kWrite);
  engine().free(addresses[29]);
  EXPECT_EQ(engine()->evictor().evict_all(), 0U);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(has_pattern(addresses[5], kMiB, 5) ? 0 : 1);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(has_room.load());
  plan_->clear();
  waiter.join();
  EXPECT_TRUE(has_room.load());
}

TEST_F(DiskPatienceTest, AnEngineThatEndsDoesNotWait) {
  start(kForEver, 0);
  plan_->add({.error_number = ENOSPC});
  engine().written(31, kMiB);
  engine_.reset();
}

// ---- The budget while the disk takes nothing ---------------------------------------------------

/// Runs ops that each bring one extent back and ask for a little memory, until one gets an error.
/// Returns how many got none.
uint64_t run_ops(TestEngine& engine, const std::vector<char*>& addresses, Status* error) {
  uint64_t count = 0;
  for (char* address : addresses) {
    const GateScope op(engine, {address}, AccessMode::kWrite);
    const Result<void*> result = engine->allocate(kBlockBytes);
    if (!result.is_ok()) {
      *error = result.status();
      return count;
    }
    engine.free(result.value());
    ++count;
  }
  return count;
}

TEST_F(DiskPatienceTest, TheBudgetIsExceededByOneOpAndNoMore) {
  start(0, 0);
  const std::vector<char*> addresses = engine().written(60, kMiB);
  Status error;
  // What malloc keeps of this op's block needs no room later.
  ASSERT_EQ(run_ops(engine(), {addresses[59]}, &error), 1U);
  plan_->add({.error_number = EROFS});
  const uint64_t count = run_ops(engine(), addresses, &error);
  EXPECT_LT(count, 60U);
  EXPECT_EQ(error.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(error.message().find("Read-only file system"), std::string::npos) << error.message();
  EXPECT_LE(engine()->budget().used(), kBudget + kMiB);
  EXPECT_LE(engine().read(engine().stats().over_budget_peak_bytes), kMiB);
  EXPECT_GT(engine().read(engine().stats().over_budget_events), 0U);
  // The program makes room itself: then it may go on.
  for (uint64_t index = 50; index < 60; ++index) engine().free(addresses[index]);
  const Result<void*> block = engine()->allocate(kBlockBytes);
  ASSERT_TRUE(block.is_ok());
  engine().free(block.value());
  plan_->clear();
  EXPECT_EQ(run_ops(engine(), {addresses.begin(), addresses.begin() + 50}, &error), 50U);
  expect_intact({addresses.begin(), addresses.begin() + 50});
}

TEST_F(DiskPatienceTest, ADiskThatComesBackPaysTheDebt) {
  start(0, 0);
  const std::vector<char*> addresses = engine().written(60, kMiB);
  plan_->add({.error_number = EROFS});
  Status error;
  ASSERT_LT(run_ops(engine(), addresses, &error), 60U);
  plan_->clear();
  EXPECT_EQ(run_ops(engine(), addresses, &error), 60U);
  EXPECT_LE(engine()->budget().used(), kBudget);
  expect_intact(addresses);
  EXPECT_EQ(engine().check_books(engine().device().heap().small_bytes()), "");
}

std::vector<Access> writes_of(const std::vector<char*>& addresses) {
  std::vector<Access> accesses;
  for (char* address : addresses) accesses.push_back({address, AccessMode::kWrite});
  return accesses;
}

TEST_F(DiskPatienceTest, AnOpThatMayNotStopHalfwayIsRefusedBeforeItBegins) {
  start(0, 0);
  const std::vector<char*> addresses = engine().written(60, kMiB);
  const std::vector<Access> all = writes_of(addresses);
  EXPECT_TRUE(engine()->admit(all).is_ok()) << "the disk takes what leaves";
  plan_->add({.error_number = EROFS});
  ASSERT_FALSE(engine()->allocate(16 * kMiB).is_ok());
  ASSERT_TRUE(engine().device().disk()->is_failing());
  const Status refused = engine()->admit(all);
  EXPECT_EQ(refused.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(refused.message().find("Read-only file system"), std::string::npos)
      << refused.message();
  EXPECT_LE(engine()->budget().used(), kBudget);
  EXPECT_TRUE(engine()->admit({all.data() + 59, 1}).is_ok()) << "resident as it is";
  // The program makes room for all that is cold.
  for (uint64_t index = 30; index < 60; ++index) engine().free(addresses[index]);
  EXPECT_TRUE(engine()->admit({all.data(), 30}).is_ok());
  EXPECT_EQ(engine().read(engine().stats().over_budget_events), 0U);
  expect_intact({addresses.begin(), addresses.begin() + 30});
}

TEST_F(DiskPatienceTest, ADiskThatCameBackIsNoReasonToRefuse) {
  start(0, 0);
  const std::vector<char*> addresses = engine().written(60, kMiB);
  plan_->add({.error_number = EIO});
  ASSERT_FALSE(engine()->allocate(16 * kMiB).is_ok());
  plan_->clear();
  EXPECT_TRUE(engine().device().disk()->is_failing()) << "nobody has tried since";
  EXPECT_TRUE(engine()->admit(writes_of(addresses)).is_ok());
  EXPECT_FALSE(engine().device().disk()->is_failing());
  EXPECT_EQ(engine().check_books(), "");
}

TEST_F(DiskPatienceTest, AnOpThatHasBegunIsRefusedNothingAndTheDebtIsPaidLater) {
  start(0, 0);
  const std::vector<char*> addresses = engine().written(60, kMiB);
  plan_->add({.error_number = EROFS});
  Status error;
  Heap::begin_whole_op();
  EXPECT_EQ(run_ops(engine(), addresses, &error), 60U) << error.message();
  EXPECT_TRUE(engine()->heap().is_in_debt());
  Heap::end_whole_op();
  EXPECT_GT(engine().read(engine().stats().over_budget_events), 0U);
  EXPECT_EQ(engine()->admit(writes_of(addresses)).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(run_ops(engine(), addresses, &error), 0U) << "allocations find it, too";
  plan_->clear();
  EXPECT_EQ(run_ops(engine(), addresses, &error), 60U);
  EXPECT_LE(engine()->budget().used(), kBudget);
  expect_intact(addresses);
}

}  // namespace
}  // namespace tencache
