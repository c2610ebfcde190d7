// SPDX-License-Identifier: Apache-2.0
//
// How the spill file of a DiskTier grows: its quota, given or following the disk, the limit on file
// sizes, full disks, and kernels that refuse.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "base/units.h"
#include "support/aligned_buffer.h"
#include "support/child_process.h"
#include "support/disk_tiers.h"
#include "support/random.h"
#include "support/small_file_system.h"
#include "support/test_directory.h"
#include "tier/disk_tier.h"

namespace tencache {
namespace {

class DiskTierGrowthTest : public ::testing::Test {
 protected:
  TestDirectory directory_;
};

TEST_F(DiskTierGrowthTest, TheQuotaIsHard) {
  constexpr uint64_t kQuota = 100 * kMiB;
  const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path(), kQuota + 1000));
  EXPECT_EQ(tier->quota_bytes(), kQuota);
  const Slot slot = take(*tier, 60 * kMiB);
  Result<Slot> refused = tier->allocate(41 * kMiB);
  ASSERT_FALSE(refused.is_ok());
  expect_message(
      refused.status(), StatusCode::kNoSpace,
      {directory_.path(), "41.0 MiB", "60.0 MiB of its quota of 100 MiB", "--disk-space"});
  expect_message(tier->allocate(200 * kMiB).status(), StatusCode::kNoSpace, {"200 MiB"});
  expect_message(tier->allocate(UINT64_MAX).status(), StatusCode::kNoSpace, {"quota"});
  const Slot rest = take(*tier, 40 * kMiB);
  EXPECT_EQ(tier->file_bytes(), kQuota);
  EXPECT_EQ(tier->used_bytes(), kQuota);
  EXPECT_FALSE(tier->allocate(1).is_ok());
  tier->release(rest);
  tier->release(slot);
  EXPECT_TRUE(tier->allocate(kQuota).is_ok()) << "all of it can be one slot again";
  EXPECT_EQ(tier->peak_used_bytes(), kQuota);
}

TEST_F(DiskTierGrowthTest, WithoutAQuotaTheLimitFollowsTheDisk) {
  uint64_t free_bytes = 100 * kMiB;
  DiskTierConfig config = config_in(directory_.path());
  config.quota_bytes.reset();
  config.free_bytes = [&free_bytes] { return free_bytes; };
  const std::unique_ptr<DiskTier> tier = open_tier(config);
  EXPECT_EQ(tier->quota_bytes(), 90 * kMiB);
  const Slot slot = take(*tier, 64 * kMiB);
  free_bytes = 36 * kMiB;
  EXPECT_EQ(tier->quota_bytes(), 90 * kMiB) << "what the file has counts";
  free_bytes = 0;  // others have filled the disk
  EXPECT_FALSE(tier->is_failing());
  expect_message(tier->allocate(4 * kMiB).status(), StatusCode::kNoSpace,
                 {directory_.path(), "64.0 MiB of its quota of", "leaves a tenth", "--disk-space"});
  EXPECT_TRUE(tier->is_failing()) << "it may pass";
  free_bytes = kGiB;  // they have gone
  const Slot second = take(*tier, 600 * kMiB);
  EXPECT_GT(tier->quota_bytes(), 900 * kMiB);
  tier->release(second);
  tier->release(slot);
}

// What need not be on the disk yet is refused without blame.
TEST_F(DiskTierGrowthTest, ASlotAheadOfNeedThatIsRefusedIsNoFailure) {
  DiskTierConfig config = config_in(directory_.path());
  config.quota_bytes.reset();
  config.free_bytes = [] { return uint64_t{0}; };
  const std::unique_ptr<DiskTier> tier = open_tier(config);
  EXPECT_EQ(tier->allocate_ahead(kMiB).status().code(), StatusCode::kNoSpace);
  EXPECT_FALSE(tier->is_failing());
  EXPECT_EQ(tier->allocate(kMiB).status().code(), StatusCode::kNoSpace);
  EXPECT_TRUE(tier->is_failing());
}

TEST_F(DiskTierGrowthTest, WithoutAQuotaTheFileSystemIsAsked) {
  DiskTierConfig config = config_in(directory_.path());
  config.quota_bytes.reset();
  const std::unique_ptr<DiskTier> tier = open_tier(config);
  EXPECT_GT(tier->quota_bytes(), 0U);
  EXPECT_LT(tier->quota_bytes(), probe_directory(directory_.path()).value().free_bytes);
}

TEST_F(DiskTierGrowthTest, AFullDiskIsNoticedWhenASlotIsTaken) {
  const SmallFileSystem disk(96 * kMiB);
  if (!disk.is_mounted()) GTEST_SKIP() << "needs root, mkfs.ext4 and a loop device";
  const std::unique_ptr<DiskTier> tier = open_tier(config_in(disk.path()));
  std::vector<Slot> slots;
  Status status;
  for (;;) {
    Result<Slot> slot = tier->allocate(4 * kMiB);
    if (!slot.is_ok()) {
      status = slot.status();
      break;
    }
    slots.push_back(slot.value());
  }
  expect_message(status, StatusCode::kNoSpace,
                 {disk.path(), "4.00 MiB", "No space left on device", "--spill-dir"});
  EXPECT_GE(slots.size(), 18U) << "more than the first step of 64 MiB: smaller steps were tried";
  // Every slot handed out can be written, to the last one.
  AlignedBuffer buffer(4 * kMiB);
  Random().fill(buffer.data(), buffer.bytes());
  for (const Slot& slot : slots) {
    const TransferResult result = tier->write(segment_of(buffer, slot), nullptr);
    ASSERT_TRUE(result.status.is_ok()) << result.status.message();
  }
  tier->release(slots.back());
  EXPECT_TRUE(tier->allocate(4 * kMiB).is_ok());
}

TEST_F(DiskTierGrowthTest, GrowthThatFailsKeepsNothingOfTheDisk) {
  const SmallFileSystem disk(96 * kMiB);
  if (!disk.is_mounted()) GTEST_SKIP() << "needs root, mkfs.ext4 and a loop device";
  const auto free_bytes = [&disk] {
    struct statvfs space = {};
    EXPECT_EQ(statvfs(disk.path().c_str(), &space), 0);
    return uint64_t{space.f_bavail} * uint64_t{space.f_frsize};
  };
  const std::unique_ptr<DiskTier> tier = open_tier(config_in(disk.path()));
  AlignedBuffer buffer(4 * kMiB);
  Random().fill(buffer.data(), buffer.bytes());
  const Slot kept = take(*tier, buffer.bytes());
  ASSERT_TRUE(tier->write(segment_of(buffer, kept), nullptr).status.is_ok());
  const uint64_t file_bytes = tier->file_bytes();
  const uint64_t before_bytes = free_bytes();
  for (int round = 0; round < 2; ++round) {
    expect_message(tier->allocate(200 * kMiB).status(), StatusCode::kNoSpace, {"No space left"});
    struct stat file = {};
    ASSERT_EQ(fstat(tier->fd(), &file), 0);
    EXPECT_EQ(static_cast<uint64_t>(file.st_size), file_bytes);
    EXPECT_GE(free_bytes() + kMiB / 2, before_bytes);
  }
  AlignedBuffer back(buffer.bytes());
  ASSERT_TRUE(tier->read(segment_of(back, kept), nullptr).status.is_ok());
  EXPECT_EQ(memcmp(back.data(), buffer.data(), back.bytes()), 0);
}

// A terminal would obey the directory's name.
TEST_F(DiskTierGrowthTest, MessagesShowTheDirectoryEscaped) {
  const std::string path = directory_.path() + "/\x1b[2J";
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  const std::unique_ptr<DiskTier> tier = open_tier(config_in(path, 4 * kMiB));
  const auto expect_escaped = [](const Status& status) {
    EXPECT_FALSE(status.is_ok());
    EXPECT_NE(status.message().find("/\\x1b[2J"), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\x1b'), std::string::npos) << status.message();
  };
  expect_escaped(tier->allocate(8 * kMiB).status());
  const int result = run_in_child([&] {
    if (!deny_syscall(SYS_fallocate, EIO)) _exit(kSkipped);
    expect_escaped(tier->allocate(kMiB).status());
  });
  EXPECT_TRUE(result == 0 || result == kSkipped) << result;
  EXPECT_EQ(tier->directory(), path);
}

TEST_F(DiskTierGrowthTest, TheLimitOnFileSizesIsNoSpaceAndNoSignal) {
  const int result = run_in_child([&] {
    signal(SIGXFSZ, SIG_DFL);
    const rlimit limit = {80 * kMiB, 80 * kMiB};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path()));
    EXPECT_EQ(tier->quota_bytes(), 80 * kMiB) << "known from the start";
    take(*tier, 60 * kMiB);
    take(*tier, 16 * kMiB);
    expect_message(tier->allocate(16 * kMiB).status(), StatusCode::kNoSpace, {"ulimit -f"});
    EXPECT_FALSE(tier->is_failing()) << "it does not pass";
    const rlimit too_low = {kMiB, 80 * kMiB};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &too_low), 0);
    expect_message(DiskTier::open(config_in(directory_.path())).status(), StatusCode::kNoSpace,
                   {"ulimit -f", "1.00 MiB", "64.0 MiB are needed"});
  });
  EXPECT_EQ(result, 0);
}

TEST_F(DiskTierGrowthTest, WithoutFallocateTheFileGrowsByItsLength) {
  // The kernel's answer where the file system has no fallocate, and the answers of sandboxes.
  for (const int error_number : {EOPNOTSUPP, EPERM, ENOSYS, EINVAL}) {
    const int result = run_in_child([&] {
      if (!deny_syscall(SYS_fallocate, error_number)) _exit(kSkipped);
      const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path()));
      AlignedBuffer buffer(5 * kMiB);
      const Slot slot = take(*tier, buffer.bytes());
      EXPECT_TRUE(tier->write(segment_of(buffer, slot), nullptr).status.is_ok());
      EXPECT_FALSE(tier->is_failing());
    });
    if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(result, 0) << error_number;
  }
}

TEST_F(DiskTierGrowthTest, GrowthThatSignalsInterruptForEverEnds) {
  const int result = run_in_child([&] {
    const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path()));
    if (!deny_syscall(SYS_fallocate, EINTR)) _exit(kSkipped);
    expect_message(tier->allocate(kMiB).status(), StatusCode::kIoError, {"Interrupted"});
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

TEST_F(DiskTierGrowthTest, GrowthThatFailsSaysWhy) {
  const std::pair<int, StatusCode> cases[] = {{EIO, StatusCode::kIoError},
                                              {EDQUOT, StatusCode::kNoSpace}};
  for (const auto& [error_number, code] : cases) {
    const int result = run_in_child([&, error = error_number, expected = code] {
      const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path()));
      if (!deny_syscall(SYS_fallocate, error)) _exit(kSkipped);
      expect_message(tier->allocate(kMiB).status(), expected,
                     {"Cannot grow the spill file", "1.00 MiB", "--spill-dir"});
      EXPECT_EQ(tier->used_bytes(), 0U);
      EXPECT_EQ(tier->file_bytes(), 0U);
    });
    if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(result, 0) << error_number;
  }
}

}  // namespace
}  // namespace tencache
