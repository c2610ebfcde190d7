// SPDX-License-Identifier: Apache-2.0
//
// Disk below host memory, over the simulated driver and a real directory. The coldest tensors go
// further down and come back; a tensor that is already on disk is not written again; a thread that
// wants a tensor which is being written gets it at once; a disk that is full, fails or lies costs
// no bit.
#include "engine/move/cuda/host_spill.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <unordered_map>

#include "base/clock.h"
#include "support/cuda/spill_fixture.h"
#include "support/eventually.h"

namespace tencache {
namespace {

class HostSpillTest : public SpillFixture {
 protected:
  static constexpr uint64_t kPieces = kBytes / kPieceBytes;
};

TEST_F(HostSpillTest, ColdestGoesToDiskAndComesBack) {
  start();
  allocate(8);
  evict(8);
  for (uint64_t index = 0; index < 8; ++index) {
    EXPECT_EQ(is_on_disk_alone(index), index < 4) << index;
  }
  EXPECT_EQ(written_bytes(), 4 * kBytes);
  EXPECT_EQ(engine_->device().disk()->used_bytes(), 4 * kBytes);
  EXPECT_EQ(engine_->device().host()->stats().asked_bytes, kHostTensors * kBytes);
  EXPECT_EQ(engine_->check_books(), "");
  check_all();
  EXPECT_GE(engine_->stats().disk_read_bytes, 4 * kBytes);
  EXPECT_EQ(engine_->stats().eviction_failures, 0u);
  uint64_t demoted_bytes = 0;
  uint64_t read_bytes = 0;
  for (const Move& move : (*engine_)->mover()->ledger().log.kept().moves) {
    if (move.kind == MoveKind::kDemote) demoted_bytes += move.bytes;
    if (move.kind == MoveKind::kReadBack) read_bytes += move.bytes;
  }
  EXPECT_EQ(demoted_bytes, engine_->stats().disk_written_bytes);
  EXPECT_EQ(read_bytes, engine_->stats().disk_read_bytes);
}

// A plan that is followed knows better than the order of last use.
TEST_F(HostSpillTest, NeededLastGoesFirst) {
  start();
  allocate(6);
  std::atomic<uint64_t> asked{0};
  follow([&] {
    asked.fetch_add(1);
    std::unordered_map<const Extent*, uint64_t> uses;
    for (const uint64_t index : {0, 1, 3, 4, 5}) uses[extent(index)] = index < 3 ? index + 1 : 50;
    uses[extent(1)] = 99;
    return uses;
  });
  evict(5);
  EXPECT_TRUE(is_on_disk_alone(2)) << "of which nothing is known";
  ASSERT_TRUE(engine_->evict(tensors_[5]));
  EXPECT_TRUE(is_on_disk_alone(1));
  const uint64_t asked_then = asked;
  EXPECT_GT(asked_then, 0u);
  follow(nullptr);
  check_all();
  EXPECT_EQ(asked, asked_then);
}

// One call evicts more than host memory holds.
TEST_F(HostSpillTest, WhatFindsNoRoomFollowsWhatIsColdByThen) {
  start();
  allocate(12);
  settle();
  std::vector<Extent*> all;
  for (uint64_t index = 0; index < 12; ++index) {
    all.push_back(extent(index));
    all.back()->set_flags(kFlagSeen);
  }
  const EvictionResult result = (*engine_)->mover()->evict(all);
  EXPECT_EQ(result.count, 12u);
  EXPECT_TRUE(result.failure.is_ok()) << result.failure.message();
  EXPECT_EQ(engine_->stats().eviction_failures, 0u);
  check_all();
}

TEST_F(HostSpillTest, FetchAheadReadsTheDisk) {
  start();
  allocate(5);
  evict(5);
  ASSERT_TRUE(is_on_disk_alone(0));
  EXPECT_EQ(engine_->prefetch({tensors_[0]}), 1u);
  settle();
  EXPECT_EQ(engine_->state(tensors_[0]), ExtentState::kResident);
  EXPECT_EQ(engine_->stats().disk_read_bytes, kBytes);
  check(0);
  EXPECT_EQ(engine_->stats().early_fetches, 1u);
}

// A tensor that came from disk and was only read leaves again without a copy and without a write.
TEST_F(HostSpillTest, SlotIsASpareCopyUntilOtherBytesLeave) {
  start();
  allocate(5);
  evict(5);
  check(0);
  EXPECT_TRUE(extent(0)->slot.is_valid());
  engine_->device().heap().drop_spare_copies(~uint64_t{0});
  EXPECT_FALSE(extent(0)->host_block.is_valid());
  EXPECT_TRUE(extent(0)->slot.is_valid());
  const uint64_t written = written_bytes();
  const uint64_t copies = engine_->driver().calls("cuMemcpyDtoHAsync");
  ASSERT_TRUE(engine_->evict(tensors_[0]));
  EXPECT_TRUE(is_on_disk_alone(0));
  EXPECT_EQ(written_bytes(), written);
  EXPECT_EQ(engine_->driver().calls("cuMemcpyDtoHAsync"), copies);
  check(0);
  // After a write the slot holds old bytes, and goes.
  engine_->write(stream_, tensors_[0], kBytes, 0);
  settle();
  ASSERT_TRUE(engine_->evict(tensors_[0]));
  EXPECT_FALSE(extent(0)->slot.is_valid());
  EXPECT_TRUE(extent(0)->host_block.is_valid());
}

// An extent with a block and a slot only has to lose the block.
TEST_F(HostSpillTest, DemotionWritesNothingTwice) {
  start();
  allocate(5);
  evict(5);
  check(0);
  ASSERT_TRUE(engine_->evict(tensors_[0]));
  ASSERT_TRUE(extent(0)->host_block.is_valid());
  ASSERT_TRUE(extent(0)->slot.is_valid());
  // All others become hotter.
  for (uint64_t index = 1; index < 5; ++index) raise_to(extent(index)->last_use_at, timestamp());
  const uint64_t written = written_bytes();
  allocate(1);
  ASSERT_TRUE(engine_->evict(tensors_[5]));
  EXPECT_TRUE(is_on_disk_alone(0));
  EXPECT_EQ(written_bytes(), written);
  check_all();
}

TEST_F(HostSpillTest, WithoutAHashNothingIsSpared) {
  start([](CudaEngineConfig& config) { config.nvrtc.reset(); });
  allocate(8);
  for (int round = 0; round < 2; ++round) {
    evict(8);
    check_all();
    EXPECT_EQ(engine_->device().disk()->used_bytes(), 0u);
    EXPECT_EQ(engine_->device().host()->stats().asked_bytes, 0u);
  }
}

// Without a disk, too, what is on its way back leaves a copy whose room an eviction can take.
TEST(HostMemoryAloneTest, AnEvictionWaitsForTheCopyOfWhatComesBack) {
  constexpr uint64_t kBytes = 4 * kMiB;
  TestCudaEngine engine([](CudaEngineConfig& config) { config.host->budget_bytes = 2 * kBytes; },
                        {.to_device_bytes_per_s = 50 * kMiB});
  const CUstream stream = engine.make_stream();
  std::vector<char*> tensors;
  for (uint64_t index = 0; index < 3; ++index) {
    tensors.push_back(engine.allocate(kBytes, stream));
    engine.write(stream, tensors.back(), kBytes, index);
  }
  for (const uint64_t index : {0, 1}) ASSERT_TRUE(engine.evict(tensors[index])) << index;
  EXPECT_EQ(engine.prefetch({tensors[0]}), 1u);
  EXPECT_TRUE(engine.evict(tensors[2]));
  for (uint64_t index = 0; index < 3; ++index) {
    engine.check(stream, tensors[index], kBytes, index);
    engine.wait_until_idle();
  }
  EXPECT_EQ(engine.differences(), 0u);
  for (char* address : tensors) engine.free(address);
}

// ---- A disk that is full, fails, or lies ---------------------------------------------------

TEST_F(HostSpillTest, FullDiskLeavesTheRestOnTheGpu) {
  start([](CudaEngineConfig& config) { config.disk->quota_bytes = 2 * kBytes; });
  allocate(8);
  evict(6);
  EXPECT_FALSE(engine_->evict(tensors_[6]));
  EXPECT_EQ(engine_->state(tensors_[6]), ExtentState::kResident);
  EXPECT_EQ(engine_->stats().eviction_failures, 1u);
  EXPECT_EQ(engine_->check_books(), "");
  check_all();
}

// Slots that only save a later write make room for slots that are needed.
TEST_F(HostSpillTest, SpareSlotsMakeRoomOnDisk) {
  start([](CudaEngineConfig& config) { config.disk->quota_bytes = kBytes; });
  allocate(5);
  evict(5);
  ASSERT_TRUE(is_on_disk_alone(0));
  write(1);  // makes room in host memory for 0
  check(0);
  ASSERT_TRUE(extent(0)->slot.is_valid());
  for (const uint64_t index : {0, 1}) EXPECT_TRUE(engine_->evict(tensors_[index])) << index;
  EXPECT_TRUE(is_on_disk_alone(2));
  EXPECT_EQ(engine_->device().disk()->used_bytes(), kBytes);
  EXPECT_EQ(engine_->device().disk()->peak_used_bytes(), kBytes);
  check_all();
}

// Neither tier has room, and an op must have its bytes.
TEST_F(HostSpillTest, OpMayExceedHostMemory) {
  start([](CudaEngineConfig& config) { config.disk->quota_bytes = kBytes; });
  allocate(5);
  evict(5);
  ASSERT_TRUE(is_on_disk_alone(0));
  // A fetch ahead may not exceed host memory.
  engine_->prefetch({tensors_[0]});
  EXPECT_TRUE(is_on_disk_alone(0));
  check(0);
  EXPECT_EQ(engine_->device().host()->stats().beyond_bytes, 0u);
  EXPECT_EQ(engine_->check_books(), "");
  EXPECT_TRUE(extent(0)->slot.is_valid());
  check_all();
}

// An op may name more than host memory holds; then the bytes come back in parts.
TEST_F(HostSpillTest, OpReadsTheDiskInParts) {
  start();
  allocate(12);
  evict(12);
  ASSERT_TRUE(is_on_disk_alone(0));
  std::vector<KernelUse> uses;
  for (uint64_t index = 0; index < 10; ++index) {
    uses.push_back({tensors_[index], kBytes, index, false});
  }
  engine_->op(stream_, uses);
  settle();
  EXPECT_EQ(engine_->device().host()->stats().peak_beyond_bytes, 0u);
  EXPECT_EQ(engine_->check_books(), "");
  check_all();
  EXPECT_EQ(engine_->differences(), 0u);
}

// Extents that find no room until others have come back do not look for it one after another.
TEST_F(HostSpillTest, OneThatFindsNoRoomTellsForTheOthersOfItsOp) {
  start();
  allocate(12);
  evict(12);
  std::atomic<uint64_t> looks{0};
  follow([&] {
    looks.fetch_add(1);
    return std::unordered_map<const Extent*, uint64_t>{};
  });
  std::vector<KernelUse> uses;
  for (uint64_t index = 0; index < 8; ++index) {
    ASSERT_TRUE(is_on_disk_alone(index)) << index;
    uses.push_back({tensors_[index], kBytes, index, false});
  }
  engine_->op(stream_, uses);
  settle();
  EXPECT_LE(looks, uses.size());
  follow(nullptr);
  check_all();
}

// An allocation that nothing on the GPU could make room for is not held up by a disk that failed.
TEST_F(HostSpillTest, ADiskThatHasFailedKeepsNobodyWaitingWhereNothingMayLeave) {
  std::atomic<uint64_t> looks{0};
  static std::atomic<uint64_t>* counted = nullptr;
  counted = &looks;
  start([](CudaEngineConfig& config) {
    config.budget_bytes = 8 * kBytes;
    config.disk_patience = {.wait_ns = 1, .clock = [] { return counted->fetch_add(1); }};
  });
  allocate(5);
  evict(4);
  faults_->add({.direction = IoDirection::kWrite, .count = 3, .error_number = EIO});
  EXPECT_FALSE(engine_->evict(tensors_[4]));
  ASSERT_TRUE(engine_->device().disk()->is_failing());
  faults_->clear();
  engine_->free(tensors_.back());
  tensors_.pop_back();
  // What no op has named may not leave.
  std::vector<void*> unnamed;
  for (int index = 0; index < 10; ++index) {
    const Result<void*> address = (*engine_)->allocate(kBytes, stream_);
    ASSERT_TRUE(address.is_ok()) << address.status().message();
    unnamed.push_back(address.value());
  }
  EXPECT_EQ(looks, 0u);
  for (void* address : unnamed) (*engine_)->free(address);
  check_all();
  stop();  // before the clock goes
  tensors_.clear();
}

// The plan takes the speed of the disk into account; a write that failed says nothing about it.
TEST_F(HostSpillTest, AWriteThatFailsLeavesTheDisksSpeedAsItWas) {
  start();
  allocate(10);
  evict(9);
  const auto speed = [&] {
    Machine machine;
    (*engine_)->mover()->describe_below(&machine);
    return machine.disk_write_bytes_per_s;
  };
  const double before = speed();
  faults_->add({.direction = IoDirection::kWrite,
                .first = faults_->pieces(IoDirection::kWrite) + 1,
                .count = 3,
                .error_number = EIO});
  EXPECT_FALSE(engine_->evict(tensors_[9]));
  EXPECT_GT(faults_->injected(), 0u);
  EXPECT_EQ(speed(), before);
  check_all();
}

TEST_F(HostSpillTest, FailedWritesCostNothing) {
  for (const int error_number : {EIO, ENOSPC}) {
    for (uint64_t piece = 1; piece <= kPieces; ++piece) {
      SCOPED_TRACE(piece);
      tensors_.clear();
      start();
      allocate(6);
      evict(4);
      faults_->clear();
      // A failed write is tried again once nothing else can leave.
      faults_->add({.first = piece, .count = 2, .error_number = error_number});
      EXPECT_FALSE(engine_->evict(tensors_[4]));
      EXPECT_EQ(engine_->state(tensors_[4]), ExtentState::kResident);
      EXPECT_EQ(engine_->device().disk()->used_bytes(), 0u);
      EXPECT_EQ(engine_->check_books(), "");
      EXPECT_TRUE(engine_->evict(tensors_[4]));  // the disk works again
      check_all();
      for (char* address : tensors_) engine_->free(address);
    }
  }
  tensors_.clear();
}

TEST_F(HostSpillTest, ReadsAreRepeated) {
  start();
  allocate(5);
  evict(5);
  faults_->clear();
  faults_->add({.direction = IoDirection::kRead, .first = 2, .count = 2});
  check(0);
  EXPECT_EQ(faults_->injected(), 2u);
  check_all();
}

TEST_F(HostSpillTest, FailedReadAheadOfUseLeavesItCold) {
  start();
  allocate(5);
  evict(5);
  faults_->clear();
  faults_->add({.direction = IoDirection::kRead, .count = 3});
  EXPECT_EQ(engine_->prefetch({tensors_[0], tensors_[4]}), 2u);
  EXPECT_TRUE(is_on_disk_alone(0));
  EXPECT_EQ((*engine_)->mover()->ledger().bytes_ahead.load(), kBytes);  // the other tensor's
  check_all();
}

class HostSpillDeathTest : public HostSpillTest {
 protected:
  void evict_and_fetch_with(const Fault& fault) {
    start();
    faults_->add(fault);
    allocate(5);
    evict(5);
    check(0);
  }
};

TEST_F(HostSpillDeathTest, WhatCannotBeReadEndsTheProgram) {
  EXPECT_DEATH(evict_and_fetch_with({.direction = IoDirection::kRead}),
               "fatal: tensors cannot be read back from the spill file in .*Input/output error");
}

TEST_F(HostSpillDeathTest, OtherBytesEndTheProgram) {
  for (const IoDirection direction : {IoDirection::kWrite, IoDirection::kRead}) {
    for (const FaultKind kind : {FaultKind::kFlipBit, FaultKind::kTear, FaultKind::kDrop}) {
      EXPECT_DEATH(evict_and_fetch_with({.direction = direction, .first = 3, .kind = kind}),
                   "fatal: the spill file in .*tencache-test.* returned other bytes than were "
                   "written: extent [0-9]+ at .*file offset [0-9]+");
    }
  }
}

// ---- Tensors that are being written ----------------------------------------------------------

class SlowHostSpillTest : public HostSpillTest {
 protected:
  static constexpr uint64_t kOtherBytes = 3 * kBytes;

  ~SlowHostSpillTest() override { let_go(); }

  // The tensors are cold in host memory. To make room for a large tensor, one thread writes three
  // of them to disk and is held in the middle of the first. There is room for one more then, so
  // fetches ahead and the large tensor do not compete for it.
  void start_demotion() {
    start([](CudaEngineConfig& config) { config.host->budget_bytes += kBytes; });
    other_ = engine_->allocate(kOtherBytes, stream_);
    engine_->write(stream_, other_, kOtherBytes, 99);
    engine_->extent(other_)->set_flags(kFlagSeen);
    allocate(kHostTensors);
    evict(kHostTensors);
    faults_->add({.first = 2, .count = 1, .kind = FaultKind::kCall, .call = [this] {
                    while (!is_let_go_) std::this_thread::yield();
                  }});
    demotion_ = std::jthread([this] {
      Extent* next[] = {engine_->extent(other_)};
      (*engine_)->mover()->evict(next);
    });
    ASSERT_TRUE(eventually([&] { return faults_->pieces(IoDirection::kWrite) >= 2; }));
  }
  void let_go() { is_let_go_ = true; }
  void finish() {
    let_go();
    demotion_.join();
    engine_->check(stream_, other_, kOtherBytes, 99);
    settle();
    engine_->free(other_);
  }

  char* other_ = nullptr;
  std::atomic<bool> is_let_go_ = false;
  std::jthread demotion_;
};

TEST_F(SlowHostSpillTest, OpCallsItOff) {
  start_demotion();
  std::jthread op([this] { check(2); });
  EXPECT_TRUE(eventually([&] { return Extent::pins_of(extent(2)->load()) > 0; }));
  let_go();
  op.join();
  EXPECT_EQ(engine_->state(tensors_[2]), ExtentState::kResident);
  const bool is_ours = eventually([&] { return extent(2)->try_take_busy(); });
  EXPECT_TRUE(is_ours);
  EXPECT_FALSE(is_ours && extent(2)->slot.is_valid()) << "written before the op had it";
  if (is_ours) extent(2)->release_busy();
  finish();
  check_all();
}

TEST_F(SlowHostSpillTest, FreeDoesNotWait) {
  start_demotion();
  std::atomic<bool> is_freed = false;
  std::jthread freeing([&] {
    for (const uint64_t index : {0, 2}) engine_->free(tensors_[index]);
    is_freed = true;
  });
  EXPECT_TRUE(eventually([&] { return is_freed.load(); })) << "while the writer is held";
  EXPECT_FALSE(engine_->device().view().find_block(tensors_[0]).has_value());
  EXPECT_TRUE(engine_->device().view().find_block(tensors_[1]).has_value());
  finish();
  freeing.join();
  EXPECT_EQ(engine_->check_books(), "");
  tensors_ = {tensors_[1], tensors_[3]};
  engine_->check(stream_, tensors_[0], kBytes, 1);
  engine_->check(stream_, tensors_[1], kBytes, 3);
}

TEST_F(SlowHostSpillTest, FetchAheadWaitsForItsEnd) {
  start_demotion();
  // The first tensor is not being written, so its claim shows that the fetch has reached the
  // second.
  std::jthread fetch([this] { EXPECT_EQ(engine_->prefetch({tensors_[3], tensors_[1]}), 2u); });
  EXPECT_TRUE(eventually([&] { return engine_->state(tensors_[3]) != ExtentState::kCold; }));
  EXPECT_EQ(engine_->state(tensors_[1]), ExtentState::kCold);
  let_go();
  fetch.join();
  EXPECT_NE(engine_->state(tensors_[1]), ExtentState::kCold);
  finish();
  check_all();
}

// A demotion that began earlier and found nothing does not tell that nothing can go now.
TEST_F(SlowHostSpillTest, WhoWaitedForOneThatFreedNothingTriesItself) {
  start();
  allocate(kHostTensors);
  evict(kHostTensors);
  CudaDevice& device = engine_->device();
  Mover& mover = *(*engine_)->mover();
  HostSpill spill(device.heap(), *device.disk(), mover.ledger());
  const auto demote = [&] {
    const MigrationPermit permit(mover.fork_latch());
    return spill.demote(kBytes).freed_bytes;
  };
  faults_->clear();
  faults_->add({.count = 1, .kind = FaultKind::kCall, .call = [this] {
                  while (!is_let_go_) std::this_thread::yield();
                }});
  faults_->add({.count = 1});
  std::jthread failing([&] { EXPECT_EQ(demote(), 0u); });
  EXPECT_TRUE(eventually([&] { return faults_->pieces(IoDirection::kWrite) == 1; }));
  std::atomic<bool> is_asking = false;
  std::jthread waiting([&] {
    is_asking = true;
    EXPECT_EQ(demote(), kBytes);
  });
  EXPECT_TRUE(eventually([&] { return is_asking.load(); }));
  let_go();
  failing.join();
  waiting.join();
  check_all();
}

// An op that calls off a demotion does not make host memory count as full.
TEST_F(HostSpillTest, CalledOffIsNoFailure) {
  start();
  allocate(kHostTensors + 1);
  evict(kHostTensors);
  // While each piece is written, all tensors look as if an op had just used them.
  faults_->add({.kind = FaultKind::kCall, .call = [this] {
                  for (uint64_t index = 0; index < kHostTensors; ++index) {
                    extent(index)->last_use_at = timestamp();
                  }
                }});
  EXPECT_FALSE(engine_->evict(tensors_[kHostTensors]));
  EXPECT_EQ(engine_->stats().eviction_failures, 0u);
  faults_->clear();
  EXPECT_TRUE(engine_->evict(tensors_[kHostTensors]));
  check_all();
}

}  // namespace
}  // namespace tencache
