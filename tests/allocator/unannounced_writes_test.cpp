// SPDX-License-Identifier: Apache-2.0
//
// What the program writes to cold extents without an op: it counts in the budget as soon as it is
// found, and leaves again where room is short, with the right bytes whoever writes meanwhile.
#include "engine/move/cpu/unannounced_writes.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "support/eventually.h"
#include "support/random.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBudget = 16 * kMiB;

TestEngine::Adjust small_budget(int look_ms = 0, Choice userfaultfd = Choice::kOff) {
  return [look_ms, userfaultfd](CpuEngineConfig& config) {
    config.userfaultfd = userfaultfd;
    config.budget_bytes = kBudget;
    config.look_interval = std::chrono::milliseconds(look_ms);
  };
}

/// Extents of 1 MiB with patterns 0, 1, ..., all of them cold.
std::vector<char*> cold_extents(TestEngine& engine, uint64_t count) {
  std::vector<char*> addresses;
  for (uint64_t index = 0; index < count; ++index) {
    addresses.push_back(engine.allocate(kMiB));
    engine.use({addresses.back()}, AccessMode::kWrite);
    fill_pattern(addresses.back(), kMiB, index);
    EXPECT_TRUE(engine.evict(addresses.back()) || engine.is_cold(addresses.back()));
  }
  return addresses;
}

TEST(UnannouncedWritesTest, WrittenPagesCountAsUseUntilAFetchMergesThem) {
  TestEngine engine(small_budget());
  char* const tensor = cold_extents(engine, 1)[0];
  EXPECT_EQ(engine->budget().used(), 0u);
  fill_pattern(tensor, 3 * kPageBytes, 7);
  engine->mover()->look_for_writes();
  EXPECT_EQ(engine->heap().unannounced_bytes(), 3 * kPageBytes);
  EXPECT_EQ(engine->budget().used(), 3 * kPageBytes);
  engine->mover()->look_for_writes();
  EXPECT_EQ(engine->budget().used(), 3 * kPageBytes) << "counted once";
  engine.use({tensor});
  EXPECT_EQ(engine->heap().unannounced_bytes(), 0u);
  EXPECT_EQ(engine->budget().used(), kMiB);
  EXPECT_TRUE(has_pattern(tensor, 3 * kPageBytes, 7));
  EXPECT_EQ(first_difference(tensor, kMiB, 0), 0u);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(UnannouncedWritesTest, FreeGivesThemBack) {
  TestEngine engine(small_budget());
  char* const tensor = cold_extents(engine, 1)[0];
  memset(tensor, 1, kMiB);
  engine->mover()->look_for_writes();
  EXPECT_EQ(engine->budget().used(), kMiB);
  engine.free(tensor);
  EXPECT_EQ(engine->budget().used(), 0u);
  EXPECT_EQ(engine->heap().unannounced_bytes(), 0u);
  EXPECT_EQ(engine.check_books(), "");
}

/// An interruption of a thread, wherever that is, from begin() to end(). The thread may hold a lock
/// that others need, so the interruption lasts 50 ms at most.
class Interruption {
 public:
  Interruption() {
    struct sigaction action = {};
    action.sa_handler = &Interruption::wait;
    sigaction(SIGUSR1, &action, &before_);
  }
  ~Interruption() { sigaction(SIGUSR1, &before_, nullptr); }
  void begin(pthread_t thread) {
    phase_ = Phase::kRequested;
    pthread_kill(thread, SIGUSR1);
    while (phase_ == Phase::kRequested) std::this_thread::yield();
  }
  void end() { phase_ = Phase::kOver; }

 private:
  enum class Phase { kRequested, kWaits, kOver };
  static void wait(int /*signal*/) {
    phase_ = Phase::kWaits;
    constexpr timespec kPause = {0, 100'000};
    const uint64_t end_ns = now_ns() + 50'000'000;
    while (phase_ == Phase::kWaits && now_ns() < end_ns) nanosleep(&kPause, nullptr);
  }
  static inline std::atomic<Phase> phase_{Phase::kOver};
  struct sigaction before_ = {};
};

// All pages of a resident extent look as if they had been written. To look through a large one
// takes several calls of the kernel.
TEST(UnannouncedWritesTest, WhatComesBackMeanwhileWasNotWritten) {
  constexpr uint64_t kLargeBytes = 12 * kMiB;
  TestEngine engine(small_budget());
  char* const tensor = engine.allocate(kLargeBytes);
  engine.use({tensor}, AccessMode::kWrite);
  fill_pattern(tensor, kLargeBytes, 1);
  // There is room for the tensor and no more.
  ASSERT_TRUE(engine->budget().try_reserve(kBudget - kLargeBytes));
  {
    std::atomic<bool> has_ended{false};
    Interruption interruption;
    std::jthread looks([&] {
      while (!has_ended) engine->mover()->look_for_writes();
    });
    for (int round = 0; round < 150; ++round) {
      (void)engine.evict(tensor);
      interruption.begin(looks.native_handle());
      engine.use({tensor});
      interruption.end();
    }
    has_ended = true;
  }
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
  EXPECT_LE(engine.read(engine.stats().peak_device_bytes), kBudget);
  engine->budget().release(kBudget - kLargeBytes);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(UnannouncedWritesTest, WhileThereIsRoomTheyStay) {
  TestEngine engine(small_budget());
  const std::vector<char*> tensors = cold_extents(engine, 4);
  for (char* tensor : tensors) memset(tensor, 1, kMiB);
  engine->mover()->look_for_writes();
  engine.use({tensors[0]});
  EXPECT_EQ(engine->heap().unannounced_bytes(), 3 * kMiB);
  EXPECT_EQ(engine.read(engine.stats().evicted_bytes), 4 * kMiB) << "nothing has left again";
}

TEST(UnannouncedWritesTest, WhatNeedsRoomGetsTheirs) {
  TestEngine engine(small_budget());
  const std::vector<char*> tensors = cold_extents(engine, 15);
  for (uint64_t index = 0; index < 15; ++index) fill_pattern(tensors[index], kMiB, 100 + index);
  engine->mover()->look_for_writes();
  EXPECT_EQ(engine->budget().used(), 15 * kMiB);
  char* const large = engine.allocate(8 * kMiB);
  memset(large, 1, 8 * kMiB);
  engine->mover()->look_for_writes();
  EXPECT_LE(engine->budget().used(), kBudget);
  EXPECT_LE(engine->heap().unannounced_bytes(), 8 * kMiB);
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
  for (uint64_t index = 0; index < 15; ++index) {
    ASSERT_TRUE(has_pattern(tensors[index], kMiB, 100 + index)) << index;
  }
  EXPECT_EQ(engine.check_books(), "");
}

// Nothing but written pages is left, and they are more than the budget.
TEST(UnannouncedWritesTest, WhatExceedsTheBudgetIsCountedAndLeaves) {
  TestEngine engine(small_budget());
  const std::vector<char*> tensors = cold_extents(engine, 24);
  for (uint64_t index = 0; index < 24; ++index) fill_pattern(tensors[index], kMiB, 100 + index);
  ::testing::internal::CaptureStderr();
  engine->mover()->look_for_writes();
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("that it wrote outside of ops"), std::string::npos) << text;
  EXPECT_GT(engine.read(engine.stats().over_budget_events), 0u);
  engine.use({engine.allocate(kMiB)});
  EXPECT_TRUE(eventually([&] { return engine->budget().used() <= kBudget; }));
  for (uint64_t index = 0; index < 24; ++index) {
    ASSERT_TRUE(has_pattern(tensors[index], kMiB, 100 + index)) << index;
  }
  EXPECT_EQ(engine.check_books(), "");
}

TEST(UnannouncedWritesTest, ThoseOfWhichMostWasWrittenGoAndGrowingOnesStay) {
  TestEngine engine(small_budget());
  const std::vector<char*> tensors = cold_extents(engine, 4);
  memset(tensors[0], 1, kMiB);          // all of it
  memset(tensors[1], 1, kPageBytes);    // little
  memset(tensors[2], 1, kMiB * 3 / 4);  // at rest
  engine->mover()->look_for_writes();
  memset(tensors[3], 1, kMiB * 3 / 4);  // new since the last look
  engine->mover()->look_for_writes();
  const EvictionResult first = engine->mover()->evict_written(16 * kMiB, false);
  EXPECT_EQ(first.count, 2u);
  EXPECT_EQ(first.bytes, kMiB * 7 / 4);
  EXPECT_EQ(engine.extent(tensors[0])->unannounced_bytes, 0u);
  EXPECT_TRUE(engine.is_cold(tensors[0]) && engine.is_cold(tensors[2]));
  EXPECT_EQ(engine->heap().unannounced_bytes(), kPageBytes + kMiB * 3 / 4);
  EXPECT_EQ(engine->mover()->evict_written(16 * kMiB, true).count, 2u);
  EXPECT_EQ(engine->heap().unannounced_bytes(), 0u);
  EXPECT_EQ(engine->budget().used(), 0u);
  EXPECT_EQ(engine.check_books(), "");
}

// A merge takes room for all of a tensor before its written pages leave.
TEST(UnannouncedWritesTest, WhatAMergeTakesBeyondTheBudgetIsCounted) {
  constexpr uint64_t kBytes = 64 * kPageBytes;
  constexpr uint64_t kWrittenBytes = kBytes / 2;
  TestEngine engine(small_budget());
  char* const tensor = engine.allocate(kBytes);
  engine.use({tensor}, AccessMode::kWrite);
  ASSERT_TRUE(engine.evict(tensor));
  memset(tensor, 1, kWrittenBytes);
  engine->mover()->look_for_writes();
  ASSERT_TRUE(engine->budget().try_reserve(kBudget - kWrittenBytes));
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 0u);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(engine->mover()->evict_written(kWrittenBytes, true).count, 1u);
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("wrote outside of ops, which took another 128 KiB, and"),
            std::string::npos)
      << warning;
  EXPECT_EQ(engine.read(engine.stats().over_budget_events), 1u);
  EXPECT_EQ(engine.read(engine.stats().over_budget_peak_bytes), kBytes - kWrittenBytes);
  engine->budget().release(kBudget - kWrittenBytes);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(UnannouncedWritesTest, OnlyAsManyLeaveAsAreWanted) {
  TestEngine engine(small_budget());
  const std::vector<char*> tensors = cold_extents(engine, 6);
  for (char* tensor : tensors) memset(tensor, 1, kMiB);
  engine->mover()->look_for_writes();
  EXPECT_EQ(engine->mover()->evict_written(kMiB + 1, false).bytes, 2 * kMiB);
  EXPECT_EQ(engine->heap().unannounced_bytes(), 4 * kMiB);
}

TEST(UnannouncedWritesTest, WhatAnOpUsesDoesNotLeave) {
  TestEngine engine(small_budget());
  const std::vector<char*> tensors = cold_extents(engine, 2);
  memset(tensors[0], 1, kMiB);
  memset(tensors[1], 1, kMiB);
  engine->mover()->look_for_writes();
  const GateScope op(engine, {tensors[0]});
  EXPECT_EQ(engine->mover()->evict_written(16 * kMiB, true).count, 1u);
  EXPECT_TRUE(engine.is_resident(tensors[0]));
  EXPECT_TRUE(engine.is_cold(tensors[1]));
}

// The program writes all of its state by address, again and again, without an op in between.
TEST(UnannouncedWritesTest, TheThreadFindsThemByItself) {
  TestEngine engine(small_budget(1));
  const std::vector<char*> tensors = cold_extents(engine, 24);
  engine.use({engine.allocate(kMiB)});
  for (uint64_t round = 1; round < 4; ++round) {
    for (uint64_t index = 0; index < 24; ++index) {
      fill_pattern(tensors[index], kMiB, 100 * round + index);
    }
    EXPECT_TRUE(eventually([&] {
      const uint64_t found_bytes = engine->heap().unannounced_bytes();
      return engine->budget().used() <= kBudget && found_bytes > 0;
    })) << round;
  }
  for (uint64_t index = 0; index < 24; ++index) {
    ASSERT_TRUE(has_pattern(tensors[index], kMiB, 300 + index)) << index;
  }
  EXPECT_EQ(engine.check_books(), "");
}

/// One thread's extents, each with one number a page, and what the numbers should be.
class Writer {
 public:
  Writer(TestEngine& engine, uint64_t stream) : engine_(engine), random_(stream) {}

  void step() {
    Tensor& tensor = tensors_[random_.between(0, kTensors - 1)];
    if (tensor.address == nullptr) {
      make(tensor);
      return;
    }
    const uint64_t page = random_.between(0, kPages - 1);
    switch (random_.between(0, 5)) {
      case 0:  // without an op
      case 1:
      case 2:
        write(tensor, page);
        break;
      case 3: {
        const GateScope op(engine_, {tensor.address}, AccessMode::kWrite);
        write(tensor, page);
        break;
      }
      case 4:
        check(tensor, page);
        break;
      default:
        if (random_.chance(0.1)) engine_.free(std::exchange(tensor.address, nullptr));
    }
  }
  /// How many numbers were wrong, of those looked at so far and of all at the end.
  uint64_t finish() {
    for (Tensor& tensor : tensors_) {
      for (uint64_t page = 0; tensor.address != nullptr && page < kPages; ++page) {
        check(tensor, page);
      }
    }
    return differences_;
  }

 private:
  static constexpr uint64_t kTensors = 8;
  static constexpr uint64_t kPages = 24;
  struct Tensor {
    char* address = nullptr;
    std::array<uint64_t, kPages> numbers = {};
  };

  static uint64_t& place(const Tensor& tensor, uint64_t page) {
    return *reinterpret_cast<uint64_t*>(tensor.address + page * kPageBytes);
  }
  void make(Tensor& tensor) {
    tensor = {engine_.allocate(kPages * kPageBytes), {}};
    memset(tensor.address, 0, kPages * kPageBytes);
    engine_.use({tensor.address});
  }
  void write(Tensor& tensor, uint64_t page) {
    place(tensor, page) = tensor.numbers.at(page) = random_.next();
  }
  void check(const Tensor& tensor, uint64_t page) {
    if (place(tensor, page) != tensor.numbers.at(page)) ++differences_;
  }

  TestEngine& engine_;
  Random random_;
  std::array<Tensor, kTensors> tensors_ = {};
  uint64_t differences_ = 0;
};

// Threads write and read by address, ops use the same extents, others are freed and made, while
// everything that was written leaves again and again.
void write_while_all_leaves(Choice userfaultfd) {
  TestEngine engine(small_budget(0, userfaultfd));
  std::atomic<bool> is_done{false};
  std::atomic<uint64_t> differences{0};
  std::vector<std::jthread> threads;
  for (uint64_t stream = 1; stream <= 3; ++stream) {
    threads.emplace_back([&, stream] {
      Writer writer(engine, stream);
      for (int round = 0; round < 1500; ++round) writer.step();
      differences += writer.finish();
    });
  }
  std::jthread mover([&] {
    while (!is_done.load()) {
      engine->evictor().evict_all();
      engine->mover()->look_for_writes();
      engine->mover()->evict_written(16 * kMiB, true);
    }
  });
  threads.clear();
  is_done.store(true);
  mover.join();
  EXPECT_EQ(differences.load(), 0u);
  engine->mover()->look_for_writes();
  EXPECT_EQ(engine.check_books(), "");
}

TEST(UnannouncedWritesTest, BytesStayRightInAllInterleavings) {
  write_while_all_leaves(Choice::kOff);
}

TEST(UnannouncedWritesTest, BytesStayRightInAllInterleavingsWherePagesAreParked) {
  write_while_all_leaves(Choice::kAuto);
}

// An extent that was overwritten as a whole is resident without a read, and its pages are used
// again like any others.
TEST(UnannouncedWritesTest, WhatWasOverwrittenAsAWholeIsTakenAsItIs) {
  TestEngine engine(small_budget(0, Choice::kAuto));
  const std::vector<char*> tensors = cold_extents(engine, 4);
  for (uint64_t index = 0; index < 4; ++index) fill_pattern(tensors[index], kMiB, 100 + index);
  engine->mover()->look_for_writes();
  const uint64_t read_bytes = engine.read(engine.stats().disk_read_bytes);
  EXPECT_EQ(engine->mover()->evict_written(4 * kMiB, false).bytes, 4 * kMiB);
  EXPECT_EQ(engine.read(engine.stats().disk_read_bytes), read_bytes);
  for (const char* tensor : tensors) EXPECT_TRUE(engine.is_cold(tensor));
  for (uint64_t index = 0; index < 4; ++index) {
    engine.use({tensors[index]});
    ASSERT_TRUE(has_pattern(tensors[index], kMiB, 100 + index)) << index;
  }
  EXPECT_EQ(engine.check_books(), "");
}

// The program drops pages that count as written, so their bytes are those of the slot again.
TEST(UnannouncedWritesTest, PagesThatWereDroppedAreReadFromTheSlot) {
  TestEngine engine(small_budget());
  char* const tensor = cold_extents(engine, 1)[0];
  fill_pattern(tensor, kMiB, 100);
  engine->mover()->look_for_writes();
  ASSERT_EQ(madvise(tensor + kPageBytes, kPageBytes, MADV_DONTNEED), 0);
  EXPECT_EQ(engine->mover()->evict_written(kMiB, true).count, 1u);
  EXPECT_TRUE(has_pattern(tensor, kPageBytes, 100));
  EXPECT_EQ(first_difference(tensor, kMiB, 100), kPageBytes);
  EXPECT_EQ(engine.check_books(), "");
}

}  // namespace
}  // namespace tencache
