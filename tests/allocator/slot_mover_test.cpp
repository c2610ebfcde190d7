// SPDX-License-Identifier: Apache-2.0
//
// Single evictions and fetches: the effect of a use, a stray write or a failing disk in each of
// their phases. Death tests show the messages about lost bytes.
#include "engine/move/cpu/slot_mover.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "support/child_process.h"
#include "support/test_engine.h"
#include "tier/io_channel.h"

namespace tencache {
namespace {

/// A channel that runs one hook between preparing and moving a piece, and another one after.
class HookedChannel final : public IoChannel {
 public:
  using Hook = std::function<void(IoDirection)>;
  HookedChannel(std::unique_ptr<IoChannel> channel, Hook before, Hook after)
      : channel_(std::move(channel)), before_(std::move(before)), after_(std::move(after)) {}

  TransferResult transfer(IoDirection direction, std::span<const IoSegment> segments,
                          PieceObserver* observer) override {
    HookedObserver hooked(*this, direction, observer);
    return channel_->transfer(direction, segments, &hooked);
  }
  const char* name() const override { return channel_->name(); }

 private:
  struct HookedObserver final : PieceObserver {
    HookedObserver(const HookedChannel& to, IoDirection towards, PieceObserver* inner)
        : channel(to), direction(towards), observer(inner) {}
    bool before_submit(size_t segment, uint64_t offset, char* memory, size_t bytes) override {
      const bool goes_on = observer->before_submit(segment, offset, memory, bytes);
      if (channel.before_) channel.before_(direction);
      return goes_on;
    }
    void after_complete(size_t segment, uint64_t offset, size_t bytes) override {
      if (channel.after_) channel.after_(direction);
      observer->after_complete(segment, offset, bytes);
    }
    const HookedChannel& channel;
    const IoDirection direction;
    PieceObserver* const observer;
  };

  std::unique_ptr<IoChannel> channel_;
  const Hook before_;
  const Hook after_;
};

TestEngine::Adjust hooked(HookedChannel::Hook before, HookedChannel::Hook after) {
  return [before, after](CpuEngineConfig& config) {
    config.disk->channel_factory = [before, after](int fd) -> Result<std::unique_ptr<IoChannel>> {
      return std::unique_ptr<IoChannel>(
          std::make_unique<HookedChannel>(make_thread_channel(fd, 2), before, after));
    };
  };
}

// A stray writer changes a byte while the piece is under way and changes it back before the proof
// (Note [Bounce ring] in engine/move/cpu/eviction_writer.h).
TEST(SlotMoverTest, ByteThatChangesAndChangesBackDuringTheWriteDoesNotReachTheSlot) {
  char* address = nullptr;
  const auto toggle = [&address](IoDirection direction) {
    if (direction == IoDirection::kWrite) address[100] = static_cast<char>(address[100] ^ 1);
  };
  TestEngine engine(hooked(toggle, toggle));
  address = engine.allocate(64 * kKiB);
  fill_pattern(address, 64 * kKiB, 3);
  ASSERT_TRUE(engine.evict(address));
  EXPECT_TRUE(has_pattern(address, 64 * kKiB, 3)) << "seen through the cold mapping";
  engine.use({address});
  EXPECT_TRUE(has_pattern(address, 64 * kKiB, 3));
}

// ---- Uses while an eviction is under way ----------------------------------------------------

/// Calls `hook` once, while the first piece of a write is under way.
TestEngine::Adjust during_write(std::function<void()> hook) {
  auto is_due = std::make_shared<bool>(true);
  return hooked(
      [hook, is_due](IoDirection direction) {
        if (direction == IoDirection::kWrite && std::exchange(*is_due, false)) hook();
      },
      nullptr);
}

class UseDuringWriteTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 256 * kKiB;

  void SetUp() override {
    engine_ = std::make_unique<TestEngine>(during_write([this] { hook_(); }));
    address_ = engine_->allocate(kBytes);
    fill_pattern(address_, kBytes, 4);
  }
  TestEngine& engine() { return *engine_; }

  std::function<void()> hook_;
  std::unique_ptr<TestEngine> engine_;
  char* address_ = nullptr;
};

TEST_F(UseDuringWriteTest, PinKeepsItResident) {
  hook_ = [this] { engine().extent(address_)->pin(); };
  EXPECT_FALSE(engine().evict(address_));
  EXPECT_TRUE(engine().is_resident(address_));
  engine().extent(address_)->unpin();
  EXPECT_TRUE(engine().evict(address_));
}

TEST_F(UseDuringWriteTest, OpThatBeginsAndEndsKeepsItResident) {
  hook_ = [this] {
    EXPECT_EQ(engine().state(address_), ExtentState::kEvicting);
    engine().use({address_});
  };
  EXPECT_FALSE(engine().evict(address_));
  EXPECT_TRUE(engine().is_resident(address_));
  EXPECT_TRUE(has_pattern(address_, kBytes, 4));
}

// A use that is over is no reason to go over the budget.
TEST_F(UseDuringWriteTest, ItsRoomIsFoundInTheNextPass) {
  hook_ = [this] { engine().use({address_}); };
  engine().use({address_}, AccessMode::kWrite);
  Budget& budget = engine()->budget();
  engine()->heap().empty_cache();  // padding would make the room
  ASSERT_TRUE(budget.try_reserve(budget.free()));
  Status reason;
  ASSERT_TRUE(engine()->evictor().make_room(kBytes, 0, &reason));
  EXPECT_TRUE(engine().is_cold(address_));
}

TEST_F(UseDuringWriteTest, StrayWriteKeepsItResident) {
  hook_ = [this] { address_[kBytes - 1] = 99; };
  // The copy of the only piece was taken before, so the slot differs.
  EXPECT_FALSE(engine().evict(address_));
  EXPECT_EQ(address_[kBytes - 1], 99);
  ASSERT_TRUE(engine().evict(address_));
  engine().use({address_});
  EXPECT_EQ(address_[kBytes - 1], 99);
}

TEST_F(UseDuringWriteTest, ExtentThatIsToStayResidentStays) {
  hook_ = [this] {
    const Access access = {address_, AccessMode::kRead};
    engine()->gate().keep_resident({&access, 1});
  };
  EXPECT_FALSE(engine().evict(address_));
  EXPECT_TRUE(engine().is_resident(address_));
}

TEST_F(UseDuringWriteTest, FreedExtentIsCachedAndItsSlotComesBackWhenItIsReused) {
  Extent* extent = engine().extent(address_);
  hook_ = [this] { engine().free(address_); };
  EXPECT_FALSE(engine().evict(address_));
  EXPECT_EQ(extent->state(), ExtentState::kCached);
  EXPECT_FALSE(extent->has(kFlagBusy));
  EXPECT_EQ(engine().device().disk()->used_bytes(), kBytes);
  EXPECT_EQ(engine().check_books(), "");
  EXPECT_EQ(engine().allocate(kBytes), address_);
  EXPECT_EQ(engine().device().disk()->used_bytes(), 0u);
  EXPECT_EQ(engine().check_books(), "");
}

TEST_F(UseDuringWriteTest, FreedAndReusedExtentIsNotEvicted) {
  hook_ = [this] {
    engine().free(address_);
    ASSERT_EQ(engine().allocate(kBytes), address_);
    fill_pattern(address_, kBytes, 5);
  };
  EXPECT_FALSE(engine().evict(address_));
  EXPECT_TRUE(engine().is_resident(address_));
  EXPECT_TRUE(has_pattern(address_, kBytes, 5));
  ASSERT_TRUE(engine().evict(address_));
  EXPECT_TRUE(has_pattern(address_, kBytes, 5));
  EXPECT_EQ(engine().check_books(), "");
}

// ---- Clean and dirty ------------------------------------------------------------------------

TEST(SlotMoverTest, UnchangedExtentIsDroppedWithoutAWrite) {
  TestEngine engine;
  char* address = engine.allocate(kMiB);
  fill_pattern(address, kMiB, 1);
  ASSERT_TRUE(engine.evict(address));
  EXPECT_EQ(engine.read(engine.stats().disk_written_bytes), kMiB);
  EXPECT_EQ(engine.read(engine.stats().clean_dropped_bytes), 0u);
  engine.use({address});
  ASSERT_TRUE(engine.evict(address));
  EXPECT_EQ(engine.read(engine.stats().disk_written_bytes), kMiB) << "written again";
  EXPECT_EQ(engine.read(engine.stats().clean_dropped_bytes), kMiB);
  EXPECT_EQ(engine.read(engine.stats().evicted_bytes), 2 * kMiB);
  engine.use({address}, AccessMode::kWrite);
  ASSERT_TRUE(engine.evict(address));
  EXPECT_EQ(engine.read(engine.stats().disk_written_bytes), 2 * kMiB) << "a write was announced";
}

TEST(SlotMoverTest, ChangeThatNobodyAnnouncedIsFoundByTheProof) {
  TestEngine engine;
  char* address = engine.allocate(kMiB);
  fill_pattern(address, kMiB, 1);
  ASSERT_TRUE(engine.evict(address));
  engine.use({address});
  fill_pattern(address, kMiB, 2);
  ASSERT_TRUE(engine.extent(address)->is_presumed_clean());
  ASSERT_TRUE(engine.evict(address));
  EXPECT_EQ(engine.read(engine.stats().disk_written_bytes), 2 * kMiB);
  EXPECT_EQ(engine.read(engine.stats().clean_dropped_bytes), 0u);
  engine.use({address});
  EXPECT_TRUE(has_pattern(address, kMiB, 2));
}

TEST(SlotMoverTest, ColdExtentMayBeReadAndWrittenAndIsCounted) {
  TestEngine engine;
  char* address = engine.allocate(kMiB);
  fill_pattern(address, kMiB, 1);
  ASSERT_TRUE(engine.evict(address));
  EXPECT_TRUE(has_pattern(address, kMiB, 1));
  EXPECT_TRUE(engine.is_cold(address));
  engine.use({address});
  EXPECT_EQ(engine.read(engine.stats().unannounced_reads), 1u);
  EXPECT_EQ(engine.read(engine.stats().unannounced_writes), 0u);
  ASSERT_TRUE(engine.evict(address));
  address[5 * kPageBytes] = 77;
  engine.use({address});
  EXPECT_EQ(address[5 * kPageBytes], 77);
  EXPECT_EQ(engine.read(engine.stats().unannounced_writes), 1u);
  // The slot lacks bytes that were written unannounced.
  EXPECT_FALSE(engine.extent(address)->is_presumed_clean());
  ASSERT_TRUE(engine.evict(address));
  EXPECT_EQ(address[5 * kPageBytes], 77);
}

TEST(SlotMoverTest, FreedColdExtentIsCountedAndGivesEverythingBack) {
  TestEngine engine;
  char* address = engine.allocate(kMiB);
  fill_pattern(address, kMiB, 1);
  ASSERT_TRUE(engine.evict(address));
  address[0] = 1;
  engine.free(address);
  EXPECT_EQ(engine.read(engine.stats().unannounced_writes), 1u);
  EXPECT_EQ(engine.device().disk()->used_bytes(), 0u);
  EXPECT_EQ(engine->heap().extent_count(), 0u);
  EXPECT_EQ(engine.check_books(), "");
}

// ---- A disk that fails ----------------------------------------------------------------------

class FailingDiskTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 128 * kKiB;

  void SetUp() override {
    engine_ = std::make_unique<TestEngine>([this](CpuEngineConfig& config) {
      config.disk->channel_factory = faulty_channel_factory(plan_);
    });
    address_ = engine_->allocate(kBytes);
    fill_pattern(address_, kBytes, 6);
  }
  TestEngine& engine() { return *engine_; }
  void fail(IoDirection direction, FaultKind kind, uint64_t count, int error_number = EIO) {
    Fault fault;
    fault.direction = direction;
    fault.kind = kind;
    fault.count = count;
    fault.error_number = error_number;
    fault.bit = 12345;
    plan_->clear();
    plan_->add(fault);
  }

  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  std::unique_ptr<TestEngine> engine_;
  char* address_ = nullptr;
};

TEST_F(FailingDiskTest, FailedWriteLeavesItResidentWithOneWarning) {
  char* second = engine().allocate(kBytes);
  for (const int error_number : {EIO, ENOSPC}) {
    fail(IoDirection::kWrite, FaultKind::kFail, UINT64_MAX, error_number);
    for (const char* address : {address_, second}) {
      Extent* extents[] = {engine().extent(address)};
      extents[0]->set_flags(kFlagSeen);
      const EvictionResult result = engine()->mover()->evict(extents);
      EXPECT_EQ(result.count, 0u);
      EXPECT_FALSE(result.failure.is_ok());
      EXPECT_TRUE(engine().is_resident(address));
    }
    EXPECT_TRUE(has_pattern(address_, kBytes, 6));
    EXPECT_EQ(engine().check_books(), "");
  }
  EXPECT_EQ(engine().read(engine().stats().eviction_failures), 4u);
  plan_->clear();
  ASSERT_TRUE(engine().evict(address_));
  EXPECT_TRUE(has_pattern(address_, kBytes, 6));
}

TEST_F(FailingDiskTest, WarnsOnce) {
  fail(IoDirection::kWrite, FaultKind::kFail, UINT64_MAX);
  ::testing::internal::CaptureStderr();
  for (int tries = 0; tries < 3; ++tries) EXPECT_FALSE(engine().evict(address_));
  const std::string text = ::testing::internal::GetCapturedStderr();
  const size_t first = text.find("an eviction failed");
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("an eviction failed", first + 1), std::string::npos) << text;
  EXPECT_NE(text.find("nothing is lost"), std::string::npos) << text;
}

TEST_F(FailingDiskTest, ReadThatFailsTwiceIsRepeated) {
  ASSERT_TRUE(engine().evict(address_));
  fail(IoDirection::kRead, FaultKind::kFail, 2);
  engine().use({address_});
  EXPECT_EQ(plan_->injected(), 2u);
  EXPECT_TRUE(has_pattern(address_, kBytes, 6));
}

/// Evicts an extent and fetches it again with one fault in either direction. The engine is made
/// here, in the process that is to die, because in a forked child the parent's engine migrates
/// nothing.
void evict_and_fetch_with(IoDirection direction, FaultKind kind, uint64_t count,
                          const TestDirectory& directory) {
  auto plan = std::make_shared<FaultPlan>();
  TestEngine engine([&](CpuEngineConfig& config) {
    config.disk->channel_factory = faulty_channel_factory(plan);
    config.disk->directory = directory.path();
  });
  char* address = engine.allocate(128 * kKiB);
  fill_pattern(address, 128 * kKiB, 6);
  Fault fault;
  fault.direction = direction;
  fault.kind = kind;
  fault.count = count;
  fault.bit = 12345;
  if (direction == IoDirection::kWrite) plan->add(fault);
  if (!engine.evict(address)) _exit(1);
  if (direction == IoDirection::kRead) plan->add(fault);
  engine.use({address});
}

TEST(SlotMoverDeathTest, ReadThatFailsThriceEndsTheProcess) {
  const TestDirectory directory;
  EXPECT_DEATH(
      evict_and_fetch_with(IoDirection::kRead, FaultKind::kFail, 3, directory),
      "fatal: tensors cannot be read back from the spill file in .*Input/output error.*stopped");
}

TEST(SlotMoverDeathTest, FileThatEndsTooSoonEndsTheProcess) {
  const TestDirectory directory;
  EXPECT_DEATH(
      evict_and_fetch_with(IoDirection::kRead, FaultKind::kEndOfFile, UINT64_MAX, directory),
      "fatal: tensors cannot be read back.*the file ends before that");
}

// Whatever kind of wrong bytes comes back, the program never gets them.
TEST(SlotMoverDeathTest, OtherBytesThanWereWrittenEndTheProcess) {
  const TestDirectory directory;
  for (const IoDirection direction : {IoDirection::kRead, IoDirection::kWrite}) {
    for (const FaultKind kind : {FaultKind::kFlipBit, FaultKind::kTear, FaultKind::kDrop}) {
      EXPECT_DEATH(evict_and_fetch_with(direction, kind, UINT64_MAX, directory),
                   "fatal: the spill file in .*tencache-test.* returned other bytes than were "
                   "written: extent 1 at 0x[0-9a-f]+, 131072 bytes at file offset 0")
          << static_cast<int>(direction) << static_cast<int>(kind);
    }
  }
}

TEST(SlotMoverTest, FullDiskGivesUpCopiesOfResidentExtentsFirst) {
  TestEngine engine([](CpuEngineConfig& config) { config.disk->quota_bytes = 4 * kMiB; });
  std::vector<char*> clean;
  for (uint64_t index = 0; index < 4; ++index) {
    clean.push_back(engine.allocate(kMiB));
    fill_pattern(clean.back(), kMiB, index);
    ASSERT_TRUE(engine.evict(clean.back()));
    engine.use({clean.back()});
  }
  EXPECT_EQ(engine.device().disk()->used_bytes(), 4 * kMiB);
  char* large = engine.allocate(3 * kMiB);  // needs neighbouring slots
  fill_pattern(large, 3 * kMiB, 9);
  ASSERT_TRUE(engine.evict(large));
  EXPECT_TRUE(has_pattern(large, 3 * kMiB, 9));
  for (uint64_t index = 0; index < 4; ++index) {
    EXPECT_TRUE(has_pattern(clean[index], kMiB, index));
  }
  EXPECT_EQ(engine.check_books(), "");
}

TEST(SlotMoverTest, BatchGoesColdTogetherAndComesBackTogether) {
  for (const Choice io_uring : {Choice::kAuto, Choice::kOff}) {
    TestEngine engine([io_uring](CpuEngineConfig& config) { config.disk->io_uring = io_uring; });
    std::vector<char*> addresses;
    std::vector<Extent*> extents;
    for (uint64_t index = 0; index < 20; ++index) {
      const uint64_t bytes = kPageBytes * (1 + index * 40);
      addresses.push_back(engine.allocate(bytes));
      fill_pattern(addresses.back(), bytes, index);
      extents.push_back(engine.extent(addresses.back()));
      extents.back()->set_flags(kFlagSeen);
    }
    EXPECT_EQ(engine->mover()->evict(extents).count, 20u);
    EXPECT_EQ(engine->budget().used(), 0u);
    for (Extent* extent : extents) extent->pin();
    engine->mover()->fetch(extents, kNoStreams, nullptr);
    for (uint64_t index = 0; index < 20; ++index) {
      EXPECT_TRUE(engine.is_resident(addresses[index]));
      EXPECT_TRUE(has_pattern(addresses[index], extents[index]->bytes, index));
      extents[index]->unpin();
    }
    EXPECT_EQ(engine.check_books(), "");
  }
}

TEST(SlotMoverTest, SeveralThreadsMayWantTheSameExtent) {
  TestEngine engine;
  char* address = engine.allocate(kMiB);
  fill_pattern(address, kMiB, 1);
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(engine.evict(address));
    std::vector<std::jthread> threads;
    for (int index = 0; index < 4; ++index) {
      threads.emplace_back([&] {
        const GateScope op(engine, {address});
        EXPECT_TRUE(has_pattern(address, kMiB, 1));
      });
    }
  }
  EXPECT_EQ(engine.read(engine.stats().late_fetches), 20u);
  EXPECT_EQ(engine.check_books(), "");
}

// The kernel may refuse a mapping (vm.max_map_count): the extent stays cold but usable, and is
// fetched once the refusal is over. Freed under its pin, it leaves no trace in the object's next
// life.
TEST(SlotMoverTest, RefusedMappingLeavesItColdAndRight) {
  const int outcome = run_in_child([] {
    TestEngine engine;
    char* address = engine.allocate(kMiB);
    char* other = engine.allocate(kMiB);
    fill_pattern(address, kMiB, 1);
    fill_pattern(other, kMiB, 2);
    ASSERT_TRUE(engine.evict(address));
    ASSERT_TRUE(engine.evict(other));
    if (!deny_syscall_when(SYS_mremap, ENOMEM, 3, MREMAP_FIXED)) _exit(kSkipped);
    {
      const GateScope op(engine, {address, other});
      EXPECT_TRUE(engine.is_cold(address));
      EXPECT_TRUE(has_pattern(address, kMiB, 1));
      address[8] = 3;
      EXPECT_EQ(engine->budget().used(), 0u);
      engine.free(other);
    }
    engine.use({address});
    EXPECT_EQ(address[8], 3);
    EXPECT_EQ(engine.check_books(), "");
    char* next = engine.allocate(kMiB);
    EXPECT_EQ(Extent::pins_of(engine.extent(next)->load()), 0u);
  });
  if (outcome == kSkipped) GTEST_SKIP() << "the kernel allows no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

}  // namespace
}  // namespace tencache
