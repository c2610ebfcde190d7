// SPDX-License-Identifier: Apache-2.0
//
// DiskTier: slots, transfers over each channel and without O_DIRECT, and every way in which a
// transfer can fail. disk_tier_growth_test.cpp has growth and its limits, disk_tier_fork_test.cpp
// forks.
#include "tier/disk_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/units.h"
#include "support/aligned_buffer.h"
#include "support/cached_pages.h"
#include "support/child_process.h"
#include "support/content_hash.h"
#include "support/disk_tiers.h"
#include "support/faulty_channel.h"
#include "support/random.h"
#include "support/test_directory.h"
#include "tier/content_hash.h"

namespace tencache {
namespace {

class DiskTierTest : public ::testing::Test {
 protected:
  TestDirectory directory_;
};

// ---- Opening ---------------------------------------------------------------------------------

TEST_F(DiskTierTest, OpensAnEmptyFileThatNobodySees) {
  const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path()));
  EXPECT_TRUE(directory_.is_empty());
  EXPECT_EQ(tier->file_bytes(), 0U);
  EXPECT_EQ(tier->used_bytes(), 0U);
  EXPECT_EQ(tier->quota_bytes(), kGiB);
  EXPECT_EQ(tier->directory(), directory_.path());
  struct stat attributes = {};
  ASSERT_EQ(fstat(tier->fd(), &attributes), 0);
  EXPECT_EQ(attributes.st_mode & 07777, 0600U);
  EXPECT_EQ(attributes.st_nlink, 0U);
  EXPECT_NE(fcntl(tier->fd(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ((fcntl(tier->fd(), F_GETFL) & O_DIRECT) != 0, tier->uses_direct_io());
}

TEST_F(DiskTierTest, LeavesNoDescriptorBehind) {
  const auto count = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = count();
  for (int round = 0; round < 3; ++round) {
    const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path()));
    take(*tier, kMiB);
    tier->freeze_before_fork();
    tier->after_fork_in_parent();
  }
  EXPECT_EQ(count(), before);
}

TEST_F(DiskTierTest, RefusesAQuotaThatHoldsNothing) {
  for (const uint64_t quota : {uint64_t{0}, uint64_t{4095}}) {
    Result<std::unique_ptr<DiskTier>> tier = DiskTier::open(config_in(directory_.path(), quota));
    ASSERT_FALSE(tier.is_ok());
    expect_message(tier.status(), StatusCode::kInvalidArgument, {"quota", "--disk-space"});
  }
}

TEST_F(DiskTierTest, RefusesABadDirectory) {
  Result<std::unique_ptr<DiskTier>> tier = DiskTier::open(config_in(directory_.path() + "/none"));
  ASSERT_FALSE(tier.is_ok());
  expect_message(tier.status(), StatusCode::kInvalidArgument, {"/none", "does not exist"});
}

TEST_F(DiskTierTest, TakesTheChannelAsAskedFor) {
  DiskTierConfig config = config_in(directory_.path());
  config.io_uring = Choice::kOff;
  EXPECT_STREQ(open_tier(config)->channel_name(), "threads");
  config.io_uring = Choice::kOn;
  Result<std::unique_ptr<DiskTier>> forced = DiskTier::open(config);
  if (!forced.is_ok()) GTEST_SKIP() << forced.status().message();
  EXPECT_STREQ(forced.value()->channel_name(), "io_uring");
  config.io_uring = Choice::kAuto;
  EXPECT_STREQ(open_tier(config)->channel_name(), "io_uring");
}

TEST_F(DiskTierTest, FallsBackToThreadsWhereIoUringIsRefused) {
  const int result = run_in_child([&] {
    if (!deny_syscall(SYS_io_uring_setup, EPERM)) _exit(kSkipped);
    DiskTierConfig config = config_in(directory_.path());
    const std::unique_ptr<DiskTier> tier = open_tier(config);
    EXPECT_STREQ(tier->channel_name(), "threads");
    AlignedBuffer buffer(3 * kMiB);
    const Slot slot = take(*tier, buffer.bytes());
    EXPECT_TRUE(tier->write(segment_of(buffer, slot), nullptr).status.is_ok());
    config.io_uring = Choice::kOn;
    Result<std::unique_ptr<DiskTier>> forced = DiskTier::open(config);
    ASSERT_FALSE(forced.is_ok());
    expect_message(forced.status(), StatusCode::kUnavailable, {"io_uring is on", "auto"});
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

// ---- Slots -----------------------------------------------------------------------------------

TEST_F(DiskTierTest, SlotsAreWholePages) {
  const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path()));
  const Slot small = take(*tier, 1);
  EXPECT_EQ(small.bytes, 4096U);
  const Slot large = take(*tier, 5000);
  EXPECT_EQ(large.bytes, 8192U);
  EXPECT_EQ(large.offset % kIoAlignment, 0U);
  EXPECT_GE(large.offset, small.offset + small.bytes);
  EXPECT_TRUE(tier->is_writable(small));
  EXPECT_EQ(tier->used_bytes(), 12288U);
  tier->release(small);
  EXPECT_EQ(tier->used_bytes(), 8192U);
  EXPECT_EQ(tier->peak_used_bytes(), 12288U);
  EXPECT_FALSE(Slot{}.is_valid());
}

TEST_F(DiskTierTest, TheFileGrowsInStepsAndIsReused) {
  const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path()));
  const Slot first = take(*tier, 8 * kMiB);
  EXPECT_EQ(tier->file_bytes(), 64 * kMiB);
  const Slot second = take(*tier, 100 * kMiB);
  EXPECT_EQ(second.offset, first.bytes) << "begins in what was free at the end";
  EXPECT_EQ(tier->file_bytes(), 128 * kMiB);
  tier->release(second);
  for (int round = 0; round < 50; ++round) {
    const Slot slot = take(*tier, 120 * kMiB);
    EXPECT_EQ(slot.offset, first.bytes);
    tier->release(slot);
  }
  EXPECT_EQ(tier->file_bytes(), 128 * kMiB);
  struct stat attributes = {};
  ASSERT_EQ(fstat(tier->fd(), &attributes), 0);
  EXPECT_EQ(static_cast<uint64_t>(attributes.st_size), tier->file_bytes());
  EXPECT_GE(static_cast<uint64_t>(attributes.st_blocks) * 512, tier->file_bytes())
      << "the blocks are reserved, not promised";
}

// ---- Transfers -------------------------------------------------------------------------------

TEST_F(DiskTierTest, BytesComeBackOverEveryChannel) {
  for (const Choice io_uring : {Choice::kAuto, Choice::kOff}) {
    for (const Choice direct_io : {Choice::kAuto, Choice::kOff}) {
      DiskTierConfig config = config_in(directory_.path());
      config.io_uring = io_uring;
      config.direct_io = direct_io;
      const std::unique_ptr<DiskTier> tier = open_tier(config);
      AlignedBuffer out(9 * kMiB + 4096);
      AlignedBuffer in(out.bytes());
      Random().fill(out.data(), out.bytes());
      const Slot first = take(*tier, kMiB);
      const Slot second = take(*tier, out.bytes() - kMiB);
      const std::vector<IoSegment> writes = {{out.data(), first.offset, first.bytes},
                                             {out.data() + kMiB, second.offset, second.bytes}};
      TransferResult result = tier->write(writes, nullptr);
      ASSERT_TRUE(result.status.is_ok()) << result.status.message();
      EXPECT_EQ(result.bytes, out.bytes());
      const std::vector<IoSegment> reads = {{in.data() + kMiB, second.offset, second.bytes},
                                            {in.data(), first.offset, first.bytes}};
      result = tier->read(reads, nullptr);
      ASSERT_TRUE(result.status.is_ok()) << result.status.message();
      EXPECT_EQ(memcmp(in.data(), out.data(), out.bytes()), 0);
    }
  }
}

TEST_F(DiskTierTest, BufferedTransfersLeaveNoPageCache) {
  DiskTierConfig config = config_in(directory_.path());
  config.direct_io = Choice::kOff;
  const std::unique_ptr<DiskTier> tier = open_tier(config);
  EXPECT_FALSE(tier->uses_direct_io());
  AlignedBuffer buffer(16 * kMiB);
  Random().fill(buffer.data(), buffer.bytes());
  const Slot slot = take(*tier, buffer.bytes());
  ASSERT_TRUE(tier->write(segment_of(buffer, slot), nullptr).status.is_ok());
  EXPECT_EQ(cached_pages(*tier, slot), 0U);
  ASSERT_TRUE(tier->read(segment_of(buffer, slot), nullptr).status.is_ok());
  // Read-ahead may bring a few pages back after the advice.
  EXPECT_LE(cached_pages(*tier, slot), slot.bytes / 4096 / 16);
}

TEST_F(DiskTierTest, DropsThePageCacheOfAMapping) {
  const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path()));
  AlignedBuffer buffer(4 * kMiB);
  Random().fill(buffer.data(), buffer.bytes());
  const Slot slot = take(*tier, buffer.bytes());
  ASSERT_TRUE(tier->write(segment_of(buffer, slot), nullptr).status.is_ok());
  void* cold = mmap(nullptr, slot.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, tier->fd(),
                    static_cast<off_t>(slot.offset));
  ASSERT_NE(cold, MAP_FAILED);
  EXPECT_EQ(memcmp(cold, buffer.data(), slot.bytes), 0) << "the mapping shows what was written";
  munmap(cold, slot.bytes);
  EXPECT_GT(cached_pages(*tier, slot), 0U);
  tier->drop_page_cache(slot);
  EXPECT_EQ(cached_pages(*tier, slot), 0U);
}

TEST_F(DiskTierTest, AWritebackThatFailsIsAnError) {
  const int result = run_in_child([&] {
    DiskTierConfig config = config_in(directory_.path());
    config.direct_io = Choice::kOff;
    const std::unique_ptr<DiskTier> tier = open_tier(config);
    AlignedBuffer buffer(kMiB);
    const Slot slot = take(*tier, buffer.bytes());
    if (!deny_syscall(SYS_sync_file_range, EIO)) _exit(kSkipped);
    expect_message(tier->write(segment_of(buffer, slot), nullptr).status, StatusCode::kIoError,
                   {directory_.path(), "Input/output error"});
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

// The kernel tells one thread alone that the writeback has failed.
TEST_F(DiskTierTest, AWritebackThatFailsIsAnErrorForAllWhoWroteMeanwhile) {
  const int result = run_in_child([&] {
    const auto plan = std::make_shared<FaultPlan>();
    DiskTierConfig config = config_in(directory_.path());
    config.direct_io = Choice::kOff;
    config.channel_factory = faulty_channel_factory(plan);
    const std::unique_ptr<DiskTier> tier = open_tier(config);
    AlignedBuffer buffer(kMiB);
    const Slot slot = take(*tier, buffer.bytes());
    const Slot others = take(*tier, buffer.bytes());
    bool is_denied = false;
    plan->add({.count = 1, .kind = FaultKind::kCall, .call = [&] {
                 std::thread([&] {
                   is_denied = deny_syscall(SYS_sync_file_range, EIO);  // for this thread
                   if (!is_denied) return;
                   EXPECT_FALSE(tier->write(segment_of(buffer, others), nullptr).status.is_ok());
                 }).join();
               }});
    const Status status = tier->write(segment_of(buffer, slot), nullptr).status;
    if (!is_denied) _exit(kSkipped);
    expect_message(status, StatusCode::kIoError, {directory_.path(), "those of this transfer"});
    EXPECT_TRUE(tier->write(segment_of(buffer, slot), nullptr).status.is_ok());
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

TEST_F(DiskTierTest, SegmentsOutsideTheFileAbort) {
  // The process that dies opens the tier, because a process forked later may not use it.
  const auto write_outside = [this] {
    const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path()));
    AlignedBuffer buffer(kMiB);
    take(*tier, kMiB);
    const std::vector<IoSegment> outside = {{buffer.data(), tier->file_bytes(), kMiB}};
    (void)tier->write(outside, nullptr);
  };
  EXPECT_DEATH(write_outside(), "in a spill file of");
}

TEST_F(DiskTierTest, SlotsThatAreNoneAbort) {
  const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path()));
  EXPECT_DEATH((void)tier->allocate(0), "a slot of 0 bytes");
  EXPECT_DEATH(tier->release(Slot{}), "is_valid");
}

// ---- Faults ----------------------------------------------------------------------------------

class FaultyDiskTest : public DiskTierTest {
 protected:
  FaultyDiskTest() : plan_(std::make_shared<FaultPlan>()) {
    DiskTierConfig config = config_in(directory_.path());
    config.channel_factory = faulty_channel_factory(plan_);
    tier_ = open_tier(config);
    slot_ = take(*tier_, kBytes);
    Random().fill(out_.data(), kBytes);
  }

  TransferResult write() { return tier_->write(segment_of(out_, slot_), nullptr); }
  TransferResult read() { return tier_->read(segment_of(in_, slot_), nullptr); }
  bool is_intact() const {
    return content_hash(in_.data(), kBytes) == content_hash(out_.data(), kBytes);
  }

  static constexpr uint64_t kBytes = 6 * kPieceBytes;
  std::shared_ptr<FaultPlan> plan_;
  std::unique_ptr<DiskTier> tier_;
  Slot slot_;
  AlignedBuffer out_{kBytes};
  AlignedBuffer in_{kBytes};
};

TEST_F(FaultyDiskTest, WithoutFaultsAllIsWell) {
  ASSERT_TRUE(write().status.is_ok());
  ASSERT_TRUE(read().status.is_ok());
  EXPECT_TRUE(is_intact());
  EXPECT_EQ(plan_->pieces(IoDirection::kWrite), 6U);
  EXPECT_EQ(plan_->pieces(IoDirection::kRead), 6U);
  EXPECT_EQ(plan_->injected(), 0U);
}

TEST_F(FaultyDiskTest, AFailedPieceNamesDirectoryPlaceAndReason) {
  const std::pair<int, StatusCode> cases[] = {
      {EIO, StatusCode::kIoError}, {ENOSPC, StatusCode::kNoSpace}, {EDQUOT, StatusCode::kNoSpace}};
  for (const IoDirection direction : {IoDirection::kWrite, IoDirection::kRead}) {
    for (const auto& [error_number, code] : cases) {
      plan_->clear();
      ASSERT_TRUE(write().status.is_ok());
      plan_->clear();
      plan_->add({.direction = direction, .first = 4, .count = 1, .error_number = error_number});
      const TransferResult result = direction == IoDirection::kWrite ? write() : read();
      expect_message(result.status, code,
                     {directory_.path(), std::to_string(slot_.offset + 3 * kPieceBytes)});
      EXPECT_EQ(result.bytes, 3 * kPieceBytes);
      EXPECT_EQ(plan_->injected(), 1U);
      const TransferResult again = direction == IoDirection::kWrite ? write() : read();
      EXPECT_TRUE(again.status.is_ok()) << "the tier goes on: " << again.status.message();
    }
  }
}

TEST_F(FaultyDiskTest, FailsUntilAWriteSucceeds) {
  EXPECT_FALSE(tier_->is_failing());
  EXPECT_TRUE(tier_->failure().is_ok());
  for (const int error_number : {ENOSPC, EDQUOT, EIO, EROFS, EINTR, EAGAIN}) {
    plan_->clear();
    plan_->add({.count = 1, .error_number = error_number});
    EXPECT_FALSE(write().status.is_ok());
    EXPECT_TRUE(tier_->is_failing()) << error_number;
    expect_message(tier_->failure(), status_from_errno(error_number, "").code(),
                   {directory_.path(), status_from_errno(error_number, "").message()});
    EXPECT_TRUE(read().status.is_ok());
    EXPECT_TRUE(tier_->is_failing()) << "reading says nothing about that";
    EXPECT_TRUE(write().status.is_ok());
    EXPECT_FALSE(tier_->is_failing());
    EXPECT_TRUE(tier_->failure().is_ok());
  }
}

TEST_F(FaultyDiskTest, AFailedTransferLosesNoChannelAndNoSlot) {
  plan_->add({.first = 1, .every = 2});
  for (int round = 0; round < 20; ++round) EXPECT_FALSE(write().status.is_ok());
  EXPECT_EQ(tier_->used_bytes(), kBytes);
  plan_->clear();
  ASSERT_TRUE(write().status.is_ok());
  ASSERT_TRUE(read().status.is_ok());
  EXPECT_TRUE(is_intact());
}

TEST_F(FaultyDiskTest, TheHashTellsEverySilentFault) {
  const FaultKind silent[] = {FaultKind::kFlipBit, FaultKind::kMisdirect, FaultKind::kTear,
                              FaultKind::kDrop};
  for (const IoDirection direction : {IoDirection::kWrite, IoDirection::kRead}) {
    for (const FaultKind kind : silent) {
      plan_->clear();
      memset(in_.data(), 0, kBytes);
      Random(static_cast<uint64_t>(kind) + 10).fill(out_.data(), kBytes);
      plan_->add({.direction = direction, .first = 2, .count = 1, .kind = kind, .bit = 12345});
      ASSERT_TRUE(write().status.is_ok());
      ASSERT_TRUE(read().status.is_ok());
      EXPECT_EQ(plan_->injected(), 1U);
      EXPECT_FALSE(is_intact()) << "direction " << static_cast<int>(direction) << " fault "
                                << static_cast<int>(kind);
    }
  }
}

TEST_F(FaultyDiskTest, AFileThatEndsIsDataLoss) {
  ASSERT_TRUE(write().status.is_ok());
  plan_->clear();
  plan_->add({.direction = IoDirection::kRead, .first = 6, .kind = FaultKind::kEndOfFile});
  expect_message(read().status, StatusCode::kDataLoss, {directory_.path()});
  // Here the file is really cut, behind the tier's back.
  plan_->clear();
  ASSERT_EQ(ftruncate(tier_->fd(), static_cast<off_t>(slot_.offset + 2 * kPieceBytes)), 0);
  expect_message(read().status, StatusCode::kDataLoss, {"the file ends before that"});
}

TEST_F(FaultyDiskTest, AChannelThatCannotBeMadeIsAnError) {
  DiskTierConfig config = config_in(directory_.path());
  int made = 0;
  config.channel_factory = [&made](int fd) -> Result<std::unique_ptr<IoChannel>> {
    if (++made > 1) return Status(StatusCode::kUnavailable, "no more channels");
    return make_thread_channel(fd, 1);
  };
  const std::unique_ptr<DiskTier> tier = open_tier(config);
  const Slot slot = take(*tier, kBytes);
  EXPECT_TRUE(tier->write(segment_of(out_, slot), nullptr).status.is_ok());

  /// An observer that starts a transfer inside a transfer, so that a second channel is needed.
  class Nested : public PieceObserver {
   public:
    explicit Nested(std::function<void()> run) : run_(std::move(run)) {}
    bool before_submit(size_t, uint64_t, char*, size_t) override {
      run_();
      return false;
    }
    void after_complete(size_t, uint64_t, size_t) override {}

   private:
    std::function<void()> run_;
  };
  TransferResult inner;
  Nested nested([&] { inner = tier->read(segment_of(in_, slot), nullptr); });
  EXPECT_TRUE(tier->read(segment_of(in_, slot), &nested).cancelled);
  expect_message(inner.status, StatusCode::kUnavailable, {"no more channels"});
  made = -1;
  config.channel_factory = [](int) -> Result<std::unique_ptr<IoChannel>> {
    return Status(StatusCode::kUnavailable, "none at all");
  };
  EXPECT_FALSE(DiskTier::open(config).is_ok());
}

// ---- Many threads ----------------------------------------------------------------------------

/// Runs the steps of one thread, which takes, overwrites, reads and releases slots at random, and
/// checks what it reads by the hash of the bytes last written.
void run_random_steps(DiskTier& tier, uint64_t stream, int steps) {
  struct Stored {
    Slot slot;
    ContentHash hash;
  };
  constexpr uint64_t kSlotPagesMax = 700;
  Random random(stream);
  AlignedBuffer buffer(kSlotPagesMax * 4096);
  std::vector<Stored> stored;
  for (int step = 0; step < steps; ++step) {
    const uint64_t choice = random.between(0, 9);
    if (stored.empty() || choice < 3) {
      Result<Slot> slot = tier.allocate(random.between(1, kSlotPagesMax * 4096));
      if (!slot.is_ok()) {
        ASSERT_EQ(slot.status().code(), StatusCode::kNoSpace) << slot.status().message();
        continue;
      }
      random.fill(buffer.data(), slot.value().bytes);
      ASSERT_TRUE(tier.write(segment_of(buffer, slot.value()), nullptr).status.is_ok());
      stored.push_back({slot.value(), content_hash(buffer.data(), slot.value().bytes)});
      continue;
    }
    const size_t index = random.between(0, stored.size() - 1);
    Stored& chosen = stored[index];
    if (choice < 5) {
      tier.release(chosen.slot);
      chosen = stored.back();
      stored.pop_back();
    } else if (choice < 7) {
      random.fill(buffer.data(), chosen.slot.bytes);
      ASSERT_TRUE(tier.write(segment_of(buffer, chosen.slot), nullptr).status.is_ok());
      chosen.hash = content_hash(buffer.data(), chosen.slot.bytes);
    } else {
      ASSERT_TRUE(tier.read(segment_of(buffer, chosen.slot), nullptr).status.is_ok());
      ASSERT_EQ(content_hash(buffer.data(), chosen.slot.bytes), chosen.hash)
          << "slot at " << chosen.slot.offset << " in step " << step;
    }
  }
  for (const Stored& last : stored) tier.release(last.slot);
}

TEST_F(DiskTierTest, RandomStepsOnFourThreads) {
  const std::unique_ptr<DiskTier> tier = open_tier(config_in(directory_.path(), 150 * kMiB));
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&tier, i] { run_random_steps(*tier, i, 250); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tier->used_bytes(), 0U);
  EXPECT_LE(tier->file_bytes(), tier->quota_bytes());
  EXPECT_TRUE(tier->allocate(tier->file_bytes()).is_ok()) << "the free space is one piece again";
}

}  // namespace
}  // namespace tencache
