// SPDX-License-Identifier: Apache-2.0
//
// Readings: a checkpoint of tensors on a disk that lies ends with a message or with the right
// bytes, whichever bit of the slot flips, in the process that owns the tier and in a forked child,
// for tensors that fit half of the budget and for larger ones.
#include "engine/reading.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/unique_fd.h"
#include "support/child_process.h"
#include "support/random.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 80 * kPageBytes;

/// The spill file behind the tier's back, as a dying disk changes it.
class Disk {
 public:
  explicit Disk(TestEngine& engine) {
    const std::string path = "/proc/self/fd/" + std::to_string(engine.device().disk()->fd());
    fd_ = UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  }
  void flip(uint64_t offset, unsigned bit) {
    char byte = 0;
    ASSERT_EQ(pread(fd_.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte = static_cast<char>(byte ^ (1 << bit));
    ASSERT_EQ(pwrite(fd_.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    ASSERT_EQ(fsync(fd_.get()), 0);
  }
  void cut(uint64_t bytes) { ASSERT_EQ(ftruncate(fd_.get(), static_cast<off_t>(bytes)), 0); }

 private:
  UniqueFd fd_;
};

void read_all(TestEngine& engine, const char* address) {
  const void* addresses[] = {address};
  const Reading reading(*engine, addresses);
  if (!has_pattern(address, kBytes, 1)) _exit(7);
}

TEST(ReadingTest, ColdExtentIsFetchedAndStaysAsLongAsItLasts) {
  TestEngine engine;
  char* address = engine.allocate(kBytes);
  fill_pattern(address, kBytes, 1);
  ASSERT_TRUE(engine.evict(address));
  {
    const void* addresses[] = {address + 5, address + kPageBytes, &engine};
    const Reading reading(*engine, addresses);
    EXPECT_TRUE(engine.is_resident(address));
    EXPECT_FALSE(engine.evict(address)) << "it is being read";
    EXPECT_TRUE(has_pattern(address, kBytes, 1));
  }
  EXPECT_TRUE(engine.evict(address));
  EXPECT_EQ(engine.read(engine.stats().unannounced_reads), 0u);
  EXPECT_EQ(engine->settled_stats().ops, 0u) << "a reading is no op";
  EXPECT_EQ(engine.check_books(), "");
}

TEST(ReadingTest, WhatIsLargerThanHalfOfTheBudgetIsReadWhereItLies) {
  TestEngine engine([](CpuEngineConfig& config) { config.budget_bytes = 2 * kMiB; });
  std::vector<char*> all;
  for (const uint64_t bytes : {kMiB + kPageBytes, kMiB / 2, kMiB / 4, kMiB / 2}) {
    all.push_back(engine.allocate(bytes));
    fill_pattern(all.back(), bytes, 1);
    ASSERT_TRUE(engine.evict(all.back()));
  }
  {
    const std::vector<const void*> addresses(all.begin(), all.end());
    const Reading reading(*engine, addresses);
    EXPECT_TRUE(engine.is_cold(all[0])) << "too large";
    EXPECT_TRUE(engine.is_resident(all[1]));
    EXPECT_TRUE(engine.is_resident(all[2]));
    EXPECT_TRUE(engine.is_cold(all[3])) << "no room is left for it";
    for (char* address : all) {
      EXPECT_TRUE(has_pattern(address, engine.extent(address)->bytes, 1));
    }
  }
  EXPECT_EQ(engine.check_books(), "");
}

TEST(ReadingTest, WrittenPagesOnTopOfASlotAreNoFault) {
  TestEngine engine([](CpuEngineConfig& config) { config.budget_bytes = kBytes; });
  char* address = engine.allocate(kBytes);
  fill_pattern(address, kBytes, 1);
  ASSERT_TRUE(engine.evict(address));
  address[3 * kPageBytes] = 'w';
  const void* addresses[] = {address};
  const Reading reading(*engine, addresses);
  EXPECT_TRUE(engine.is_cold(address));
  EXPECT_EQ(address[3 * kPageBytes], 'w');
}

TEST(ReadingTest, FreedWhileItIsReadWhereItLies) {
  TestEngine engine([](CpuEngineConfig& config) { config.budget_bytes = kBytes; });
  char* address = engine.allocate(kBytes);
  fill_pattern(address, kBytes, 1);
  ASSERT_TRUE(engine.evict(address));
  {
    const void* addresses[] = {address};
    const Reading reading(*engine, addresses);
    engine.free(address);
  }
  EXPECT_EQ(engine.check_books(), "");
}

// ---- A disk that lies -----------------------------------------------------------------------

class LyingDiskTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  static TestEngine::Adjust budget() {
    return [](CpuEngineConfig& config) { config.budget_bytes = GetParam(); };
  }
};
using LyingDiskDeathTest = LyingDiskTest;
// Under the first budget the reading fetches, under the second it reads where the tensor lies.
INSTANTIATE_TEST_SUITE_P(Budgets, LyingDiskDeathTest, ::testing::Values(4 * kBytes, kBytes));

TEST_P(LyingDiskDeathTest, FlippedBitEndsTheProcess) {
  const auto body = [] {
    TestEngine engine(budget());
    char* address = engine.allocate(kBytes);
    fill_pattern(address, kBytes, 1);
    if (!engine.evict(address)) _exit(1);
    Disk(engine).flip(engine.extent(address)->slot.offset + kBytes / 2, 3);
    read_all(engine, address);
    _exit(0);
  };
  EXPECT_EXIT(body(), ::testing::KilledBySignal(SIGABRT),
              "other bytes than were written.*file offset");
}

TEST_P(LyingDiskDeathTest, FileThatIsTooShortEndsTheProcess) {
  const auto body = [] {
    TestEngine engine(budget());
    char* address = engine.allocate(kBytes);
    fill_pattern(address, kBytes, 1);
    if (!engine.evict(address)) _exit(1);
    Disk(engine).cut(engine.extent(address)->slot.offset + kPageBytes);
    read_all(engine, address);
    _exit(0);
  };
  EXPECT_EXIT(body(), ::testing::KilledBySignal(SIGABRT), "file offset");
}

TEST(LyingDiskRefusedMappingsDeathTest, FlippedBitEndsTheProcessWithoutSharedMappings) {
  const auto body = [] {
    TestEngine engine([](CpuEngineConfig& config) { config.budget_bytes = kBytes; });
    char* address = engine.allocate(kBytes);
    fill_pattern(address, kBytes, 1);
    if (!engine.evict(address)) _exit(1);
    Disk(engine).flip(engine.extent(address)->slot.offset + kBytes / 2, 3);
    // Without filters there is nothing to show.
    if (!deny_syscall_when(SYS_mmap, ENODEV, 3, MAP_SHARED)) fatal("other bytes than were written");
    read_all(engine, address);
    _exit(0);
  };
  EXPECT_EXIT(body(), ::testing::KilledBySignal(SIGABRT), "other bytes than were written");
}

TEST(LyingDiskAfterwardsDeathTest, BitThatFlipsWhileItIsReadEndsTheProcessAtTheEnd) {
  const auto body = [] {
    TestEngine engine([](CpuEngineConfig& config) { config.budget_bytes = kBytes; });
    char* address = engine.allocate(kBytes);
    fill_pattern(address, kBytes, 1);
    if (!engine.evict(address)) _exit(1);
    const void* addresses[] = {address};
    const Reading reading(*engine, addresses);
    Disk(engine).flip(engine.extent(address)->slot.offset, 0);
    if (write(STDERR_FILENO, "read\n", 5) < 0) _exit(1);
  };
  EXPECT_EXIT(body(), ::testing::KilledBySignal(SIGABRT), "read\n.*other bytes");
}

// Each flip is undone, so that the next is the only one.
TEST(LyingDiskChildrenTest, NoFlipIsSilentInAForkedChild) {
  constexpr int kFlips = 200;
  Random random;
  TestEngine engine;
  char* address = engine.allocate(kBytes);
  fill_pattern(address, kBytes, 1);
  ASSERT_TRUE(engine.evict(address));
  Disk disk(engine);
  const uint64_t begin = engine.extent(address)->slot.offset;
  for (int number = 0; number < kFlips; ++number) {
    const uint64_t offset = begin + random.between(0, kBytes - 1);
    const auto bit = static_cast<unsigned>(random.between(0, 7));
    disk.flip(offset, bit);
    testing::internal::CaptureStderr();
    const pid_t child = fork();
    if (child == 0) {
      read_all(engine, address);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << "silent at " << offset;
    EXPECT_NE(text.find("at file offset " + std::to_string(begin)), std::string::npos) << text;
    disk.flip(offset, bit);
  }
  read_all(engine, address);
  EXPECT_EQ(engine.check_books(), "");
}

TEST(LyingDiskChildrenTest, ChildReadsWhatIsRight) {
  TestEngine engine;
  char* address = engine.allocate(kBytes);
  fill_pattern(address, kBytes, 1);
  ASSERT_TRUE(engine.evict(address));
  const int outcome = run_in_child([&] {
    read_all(engine, address);
    address[0] = static_cast<char>(address[0] + 1);  // a private page
    const void* addresses[] = {address};
    const Reading reading(*engine, addresses);
    // A daemon closes everything; another file then has the number.
    close(engine.device().disk()->fd());
    ASSERT_EQ(open("/dev/zero", O_RDONLY), engine.device().disk()->fd());
    const Reading unchecked(*engine, addresses);
  });
  EXPECT_EQ(outcome, 0);
}

}  // namespace
}  // namespace tencache
