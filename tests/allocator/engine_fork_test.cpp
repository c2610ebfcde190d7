// SPDX-License-Identifier: Apache-2.0
//
// Forked children see the bytes as they were at the fork, whatever the parent does afterwards; they
// change nothing of the parent's, and allocate plain memory.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "support/child_process.h"
#include "support/random.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 512 * kKiB;

/// A child that waits for the parent between its body's two parts.
class Child {
 public:
  Child(const std::function<bool()>& first, const std::function<bool()>& second) {
    EXPECT_EQ(pipe(to_child_), 0);
    EXPECT_EQ(pipe(to_parent_), 0);
    pid_ = fork();
    if (pid_ != 0) {
      char byte = 0;
      EXPECT_EQ(read(to_parent_[0], &byte, 1), 1);
      return;
    }
    char byte = 1;
    const bool first_is_right = first();
    if (write(to_parent_[1], &byte, 1) != 1 || read(to_child_[0], &byte, 1) != 1) _exit(3);
    const bool second_is_right = second();
    _exit(first_is_right && second_is_right ? 0 : first_is_right ? 2 : 1);
  }
  /// Lets the child go on; returns 0 when both parts were right.
  int finish() {
    const char byte = 1;
    EXPECT_EQ(write(to_child_[1], &byte, 1), 1);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    for (const int end : {to_child_[0], to_child_[1], to_parent_[0], to_parent_[1]}) close(end);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  int to_child_[2];
  int to_parent_[2];
  pid_t pid_ = -1;
};

class EngineForkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cold_ = engine_.allocate(kBytes);
    resident_ = engine_.allocate(kBytes);
    fill_pattern(cold_, kBytes, 1);
    fill_pattern(resident_, kBytes, 2);
    ASSERT_TRUE(engine_.evict(cold_));
  }

  TestEngine engine_;
  char* cold_ = nullptr;
  char* resident_ = nullptr;
};

TEST_F(EngineForkTest, ChildReadsColdAndResidentExtentsAndWritesItsOwnCopies) {
  const int outcome = run_in_child([this] {
    EXPECT_TRUE(engine_->is_passive());
    EXPECT_TRUE(has_pattern(cold_, kBytes, 1));
    EXPECT_TRUE(has_pattern(resident_, kBytes, 2));
    fill_pattern(cold_, kBytes, 11);
    fill_pattern(resident_, kBytes, 12);
    EXPECT_TRUE(has_pattern(cold_, kBytes, 11));
    EXPECT_TRUE(has_pattern(resident_, kBytes, 12));
  });
  EXPECT_EQ(outcome, 0);
  EXPECT_TRUE(has_pattern(cold_, kBytes, 1));
  EXPECT_TRUE(has_pattern(resident_, kBytes, 2));
  engine_.use({cold_});
  EXPECT_TRUE(has_pattern(cold_, kBytes, 1));
  EXPECT_EQ(engine_.read(engine_.stats().forks), 1u);
  EXPECT_EQ(engine_.read(engine_.stats().unannounced_writes), 0u);
}

TEST_F(EngineForkTest, ChildKeepsItsBytesWhileTheParentChangesEvictsAndFrees) {
  Child child(
      [this] { return has_pattern(cold_, kBytes, 1); },
      [this] { return has_pattern(cold_, kBytes, 1) && has_pattern(resident_, kBytes, 2); });
  for (uint64_t round = 0; round < 5; ++round) {
    for (char* address : {cold_, resident_}) {
      const GateScope op(engine_, {address}, AccessMode::kWrite);
      fill_pattern(address, kBytes, 100 + round);
    }
    ASSERT_TRUE(engine_.evict(cold_));
    ASSERT_TRUE(engine_.evict(resident_));
    EXPECT_TRUE(has_pattern(cold_, kBytes, 100 + round));
  }
  engine_.free(cold_);
  // This takes any room that old slots left.
  char* other = engine_.allocate(kBytes);
  fill_pattern(other, kBytes, 55);
  ASSERT_TRUE(engine_.evict(other));
  EXPECT_EQ(child.finish(), 0);
  EXPECT_TRUE(has_pattern(other, kBytes, 55));
}

// Giving up slots that a living child maps would make no room, and the extents whose bytes they
// hold can still leave to them.
TEST(EngineForkQuotaTest, FrozenSlotsAreNotGivenUpWhereTheDiskIsFull) {
  TestEngine engine([](CpuEngineConfig& config) { config.disk->quota_bytes = 4 * kBytes; });
  const std::vector<char*> clean = engine.written(2, kBytes);
  for (char* address : clean) {
    ASSERT_TRUE(engine.evict(address));
    engine.use({address});
  }
  Child child([] { return true; }, [] { return true; });
  const std::vector<char*> others = engine.written(3, kBytes);
  ASSERT_TRUE(engine.evict(others[0]));
  ASSERT_TRUE(engine.evict(others[1]));
  EXPECT_FALSE(engine.evict(others[2])) << "the disk is full";
  const uint64_t written = engine.read(engine.stats().disk_written_bytes);
  for (char* address : clean) EXPECT_TRUE(engine.evict(address));
  EXPECT_EQ(engine.read(engine.stats().disk_written_bytes), written);
  EXPECT_EQ(child.finish(), 0);
  EXPECT_EQ(engine.check_books(), "");
}

// A crash reporter forks in its handler of SIGABRT.
TEST(EngineForkEndTest, AHandlerOfTheAbortMayForkWhateverTheThreadHolds) {
  const int outcome = run_in_child([] {
    TestEngine engine;
    signal(SIGABRT, [](int) {
      const pid_t child = fork();
      if (child == 0) _exit(0);
      waitpid(child, nullptr, 0);
      _exit(42);
    });
    alarm(60);  // ends the process if the fork waits for its own thread
    const MigrationPermit permit(engine->mover()->fork_latch());
    fatal("a slot is lost");
  });
  EXPECT_EQ(outcome, 42);
}

TEST_F(EngineForkTest, SlotsComeBackWhenTheChildIsGone) {
  Child child([] { return true; }, [] { return true; });
  {
    const GateScope op(engine_, {cold_}, AccessMode::kWrite);
    fill_pattern(cold_, kBytes, 7);
  }
  ASSERT_TRUE(engine_.evict(cold_));
  EXPECT_EQ(engine_.device().disk()->used_bytes(), 2 * kBytes) << "the child's slot waits";
  EXPECT_EQ(child.finish(), 0);
  engine_.use({cold_});
  engine_.free(cold_);  // this release finds the child gone
  EXPECT_EQ(engine_.device().disk()->used_bytes(), 0u);
  EXPECT_EQ(engine_.check_books(), "");
}

TEST_F(EngineForkTest, ChildAllocatesAndFreesOnPlainMemory) {
  const int outcome = run_in_child([this] {
    char* fresh = engine_.allocate(4 * kMiB);
    EXPECT_FALSE(engine_.device().arena().contains(fresh));
    fill_pattern(fresh, 4 * kMiB, 3);
    engine_.use({cold_, fresh}, AccessMode::kWrite);
    EXPECT_TRUE(has_pattern(fresh, 4 * kMiB, 3));
    engine_.free(fresh);
    engine_.free(cold_);
    engine_.free(resident_);
  });
  EXPECT_EQ(outcome, 0);
  EXPECT_TRUE(has_pattern(cold_, kBytes, 1));
  EXPECT_TRUE(has_pattern(resident_, kBytes, 2));
  EXPECT_EQ(engine_.check_books(), "");
}

TEST_F(EngineForkTest, GrandchildSeesWhatItsParentWrote) {
  const int outcome = run_in_child([this] {
    fill_pattern(cold_, kBytes, 21);
    EXPECT_EQ(run_in_child([this] { EXPECT_TRUE(has_pattern(cold_, kBytes, 21)); }), 0);
  });
  EXPECT_EQ(outcome, 0);
  EXPECT_TRUE(has_pattern(cold_, kBytes, 1));
}

TEST_F(EngineForkTest, ForkInsideAnOpLeavesBothSidesInStep) {
  const GateScope op(engine_, {cold_});
  const int outcome = run_in_child([this] {
    engine_->gate().close();
    engine_->gate().open(0, {});
    engine_->gate().close();
  });
  EXPECT_EQ(outcome, 0);
  EXPECT_TRUE(engine_.is_resident(cold_));
}

// A fork waits until no migration is in a window, and none begins while the process is copied.
TEST(EngineForkPressureTest, ForksDuringHeavyMigrationShowRightBytes) {
  constexpr uint64_t kCount = 12;
  constexpr int kForks = 50;
  TestEngine engine([](CpuEngineConfig& config) { config.budget_bytes = 4 * kMiB; });
  const std::vector<char*> addresses = engine.written(kCount, kBytes);
  std::atomic<bool> is_over{false};
  std::vector<std::jthread> users;
  for (uint64_t user = 0; user < 2; ++user) {
    users.emplace_back([&, user] {
      Random random(user);
      while (!is_over.load()) {
        const uint64_t index = random.between(0, kCount - 1);
        const GateScope op(engine, {addresses[index]}, AccessMode::kRead);
        if (!has_pattern(addresses[index], kBytes, index)) ADD_FAILURE() << index;
        if (random.chance(0.1)) engine->evictor().evict_all();
      }
    });
  }
  for (int round = 0; round < kForks; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (uint64_t index = 0; index < kCount; ++index) {
        if (!has_pattern(addresses[index], kBytes, index)) _exit(1);
        fill_pattern(addresses[index], kPageBytes, 1000 + index);
      }
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << " in " << round;
  }
  is_over.store(true);
  users.clear();
  for (uint64_t index = 0; index < kCount; ++index) {
    EXPECT_TRUE(has_pattern(addresses[index], kBytes, index));
    engine.free(addresses[index]);
  }
  EXPECT_EQ(engine.check_books(), "");
}

}  // namespace
}  // namespace tencache
