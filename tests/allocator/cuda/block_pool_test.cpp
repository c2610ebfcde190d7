// SPDX-License-Identifier: Apache-2.0
//
// BlockPool: a block of one stream is reused at once and without the driver; a block of several
// waits for the kernels of all; a free segment changes streams; a block that a capture or a refused
// call keeps from being marked is freed later; memory that goes back to the source is idle.
#include "memory/cuda/block_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/cuda/block_pool_fixture.h"
#include "support/eventually.h"

namespace tencache {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kBytes = 4096;

class BlockPoolTest : public BlockPoolFixture {
 protected:
  // A block that is not a whole segment, because others lie beside it.
  CUdeviceptr allocate_beside_another(CUstream stream) {
    const CUdeviceptr address = allocate(kBytes, stream);
    kept_ = allocate(kMiB, stream);
    return address;
  }

  static std::set<CUdeviceptr> as_set(const std::vector<CUdeviceptr>& addresses) {
    return {addresses.begin(), addresses.end()};
  }

  CUdeviceptr kept_ = 0;
  const CUstream main_ = make_stream();
  const CUstream side_ = make_stream();
};

TEST_F(BlockPoolTest, ABlockOfOneStreamIsUsedAgainAtOnceAndWithoutTheDriver) {
  driver_->hold(main_);
  const CUdeviceptr first = allocate(kBytes - 1, main_);
  EXPECT_EQ(pool_->used_bytes(), kBytes);
  EXPECT_EQ(view_of(first).requested_bytes, kBytes - 1);
  EXPECT_EQ(view_of(first).state, BlockState::kActive);
  note_use(first, main_);
  free(first);
  EXPECT_EQ(pool_->used_bytes(), 0u);
  EXPECT_EQ(allocate(kBytes, main_), first) << "although its stream is busy";
  EXPECT_EQ(first % 512, 0u);
  EXPECT_EQ(pool_->segment_bytes(), 2 * kMiB);
  EXPECT_EQ(driver_->calls("cuEventRecord"), 0u);
  EXPECT_EQ(driver_->calls("cuStreamIsCapturing"), 0u);
  free(first);
}

TEST_F(BlockPoolTest, AnotherStreamDoesNotGetIt) {
  const CUdeviceptr first = allocate_beside_another(main_);
  free(first);
  const CUdeviceptr other = allocate(kBytes, side_);
  EXPECT_NE(other, first);
  EXPECT_EQ(pool_->segment_bytes(), 4 * kMiB);
  for (const SegmentView& segment : pool_->segments()) {
    const bool is_first = segment.address <= first && first < segment.address + segment.bytes;
    EXPECT_EQ(segment.owner, set_of(is_first ? main_ : side_));
  }
  free(other);
  free(kept_);
}

TEST_F(BlockPoolTest, WhatAnotherStreamUsedWaitsForItsKernels) {
  const CUdeviceptr first = allocate(kMiB, main_);
  const CUdeviceptr second = allocate(kMiB, main_);
  driver_->hold(side_);
  note_use(first + kMiB - 1, side_);  // a view's address
  EXPECT_EQ(view_of(first).streams, set_of(main_) | set_of(side_));
  EXPECT_EQ(view_of(second).streams, set_of(main_));
  free(first);
  EXPECT_EQ(view_of(first).state, BlockState::kWaiting);
  EXPECT_EQ(pool_->used_bytes(), kMiB);
  const CUdeviceptr third = allocate(kMiB, main_);
  EXPECT_NE(third, first);
  EXPECT_EQ(pool_->segment_bytes(), 4 * kMiB);
  free(allocate(kMiB, main_));
  EXPECT_EQ(view_of(first).state, BlockState::kWaiting);
  const CUdeviceptr fourth = allocate(kMiB, main_);  // fills the free part
  driver_->wait_until_idle();
  EXPECT_EQ(allocate(kMiB, main_), first);
  for (const CUdeviceptr address : {first, second, third, fourth}) free(address);
}

TEST_F(BlockPoolTest, WhatWaitedIsUsedAgainWhileTheSegmentHasRoom) {
  const CUdeviceptr address = allocate_beside_another(main_);
  note_use(address, side_);
  driver_->hold(side_);
  free(address);
  const CUdeviceptr other = allocate(kBytes, main_);
  EXPECT_NE(other, address);
  driver_->wait_until_idle();
  EXPECT_EQ(allocate(kBytes, main_), address);
  for (const CUdeviceptr used : {address, other, kept_}) free(used);
}

TEST_F(BlockPoolTest, ManyThatWaitAreNotLookedAtByEachAllocation) {
  constexpr size_t kCount = 50;
  std::vector<CUdeviceptr> addresses;
  for (size_t i = 0; i < kCount; ++i) addresses.push_back(allocate(512, main_));
  driver_->hold(side_);
  for (const CUdeviceptr address : addresses) {
    note_use(address, side_);
    free(address);
  }
  const uint64_t queries = driver_->calls("cuEventQuery");
  for (size_t i = 0; i < 2 * kCount; ++i) free(allocate(512, main_));
  EXPECT_EQ(driver_->calls("cuEventQuery") - queries, 2u) << "one stream is late";
  driver_->wait_until_idle();
}

TEST_F(BlockPoolTest, WorkThatComesAfterTheFreeIsNotWaitedFor) {
  const CUdeviceptr address = allocate(2 * kMiB, main_);
  note_use(address, side_);
  free(address);
  driver_->wait_until_idle();
  driver_->hold(side_);
  EXPECT_EQ(pool_->trim(1), 20 * kMiB) << "the mark was made before";
}

TEST_F(BlockPoolTest, EveryStreamIsWaitedFor) {
  const CUstream third = make_stream();
  const CUdeviceptr address = allocate(20 * kMiB, main_);
  note_use(address, side_);
  driver_->hold(third);
  note_use(address, third);
  free(address);
  const CUdeviceptr other = allocate(20 * kMiB, main_);
  EXPECT_NE(other, address);
  driver_->wait_until_idle();
  EXPECT_EQ(allocate(20 * kMiB, main_), address);
  free(address);
  free(other);
}

// A long kernel of one stream does not delay blocks that wait for another stream.
TEST_F(BlockPoolTest, ABusyStreamDelaysOnlyItsOwn) {
  const CUstream third = make_stream();
  const CUdeviceptr late = allocate(20 * kMiB, main_);
  const CUdeviceptr soon = allocate(20 * kMiB, main_);
  driver_->hold(side_);
  note_use(late, side_);
  note_use(soon, third);
  free(late);
  free(soon);
  ASSERT_EQ(api().cuStreamSynchronize(third), CUDA_SUCCESS);
  EXPECT_EQ(allocate(20 * kMiB, main_), soon);
  EXPECT_EQ(view_of(late).state, BlockState::kWaiting);
  free(soon);
}

TEST_F(BlockPoolTest, AFreeSegmentChangesToAStreamThatIsHeldBack) {
  const CUdeviceptr address = allocate(kBytes, main_);
  const auto value = reinterpret_cast<std::atomic<int>*>(address);
  driver_->hold(main_);
  ASSERT_EQ(driver_->launch(main_, {{address, kBytes}}, [value] { *value = 1; }), CUDA_SUCCESS);
  free(address);
  EXPECT_EQ(allocate(kBytes, side_), address);
  EXPECT_EQ(source_->asked_count(), 1u);
  EXPECT_EQ(pool_->segments()[0].owner, set_of(side_));
  int seen = 0;
  ASSERT_EQ(driver_->launch(side_, {{address, kBytes}}, [value, &seen] { seen = *value; }),
            CUDA_SUCCESS);
  std::this_thread::sleep_for(milliseconds(5));
  driver_->wait_until_idle();
  EXPECT_EQ(seen, 1) << "the new stream ran before the old one was done";
  EXPECT_EQ(driver_->calls("cuEventSynchronize"), 0u) << "no thread waits";
  free(address);
}

TEST_F(BlockPoolTest, ALargeSegmentDoesNotServeSmallRequests) {
  free(allocate(2 * kMiB, main_));
  const CUdeviceptr small = allocate(kBytes, side_);
  EXPECT_EQ(pool_->segment_bytes(), 22 * kMiB);
  const CUdeviceptr large = allocate(kMiB + 1, side_);
  EXPECT_EQ(pool_->segment_bytes(), 22 * kMiB);
  free(small);
  free(large);
}

TEST_F(BlockPoolTest, StreamsThatShareABitWaitForEachOther) {
  use_up_numbers();
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  ASSERT_EQ(set_of(first), set_of(second));
  const CUdeviceptr address = allocate(20 * kMiB, first);
  driver_->hold(first);
  free(address);
  EXPECT_EQ(view_of(address).state, BlockState::kWaiting) << "it may be wanted for the second one";
  const CUdeviceptr other = allocate(20 * kMiB, second);
  EXPECT_NE(other, address);
  driver_->wait_until_idle();
  EXPECT_EQ(allocate(20 * kMiB, second), address);
  free(address);
  free(other);
}

TEST_F(BlockPoolTest, AFreeSegmentChangesToTheSharedBitOnlyWhenItIsIdle) {
  const CUdeviceptr address = allocate(20 * kMiB, main_);
  use_up_numbers();
  const CUstream sharing = make_stream();
  driver_->hold(main_);
  free(address);
  const CUdeviceptr other = allocate(20 * kMiB, sharing);
  EXPECT_NE(other, address);
  driver_->wait_until_idle();
  EXPECT_EQ(allocate(20 * kMiB, sharing), address);
  EXPECT_EQ(driver_->calls("cuStreamWaitEvent"), 0u);
  free(address);
  free(other);
  driver_->wait_until_idle();
  // The segment comes back from the shared bit, whose free memory is idle.
  EXPECT_GT(pool_->trim(1), 0u);
  const CUdeviceptr again = allocate(20 * kMiB, main_);
  EXPECT_EQ(driver_->calls("cuStreamWaitEvent"), 0u);
  EXPECT_EQ(source_->asked_count(), 2u);
  free(again);
}

TEST_F(BlockPoolTest, ACaptureOnlyDelays) {
  const CUdeviceptr address = allocate(20 * kMiB, main_);
  note_use(address, side_);
  driver_->set_capturing(side_, true);
  free(address);
  EXPECT_EQ(view_of(address).state, BlockState::kWaiting);
  const CUdeviceptr other = allocate(20 * kMiB, main_);
  EXPECT_NE(other, address);
  EXPECT_EQ(pool_->trim(~uint64_t{0}), 0u);
  EXPECT_EQ(driver_->calls("cuEventRecord"), 0u);
  driver_->hold(side_);
  driver_->set_capturing(side_, false);
  EXPECT_EQ(pool_->trim(~uint64_t{0}), 0u) << "it is marked now, behind what the stream does";
  EXPECT_EQ(driver_->calls("cuEventRecord"), 1u);
  driver_->wait_until_idle();
  EXPECT_EQ(allocate(20 * kMiB, main_), address);
  free(address);
  free(other);
}

TEST_F(BlockPoolTest, NoSegmentChangesStreamsUnderACapture) {
  const CUdeviceptr address = allocate(20 * kMiB, main_);
  free(address);
  for (const CUstream capturing : {main_, side_}) {
    driver_->set_capturing(capturing, true);
    const CUdeviceptr other = allocate(20 * kMiB, side_);
    EXPECT_NE(other, address);
    driver_->set_capturing(capturing, false);
    free(other);
    EXPECT_GT(pool_->trim(~uint64_t{0}), 0u);
    free(allocate(20 * kMiB, main_));
  }
  EXPECT_EQ(driver_->calls("cuStreamWaitEvent"), 0u);
  driver_->set_capturing(main_, true);
  EXPECT_EQ(pool_->trim(~uint64_t{0}), 0u);
  EXPECT_EQ(pool_->segment_bytes(), 20 * kMiB);
  driver_->set_capturing(main_, false);
}

TEST_F(BlockPoolTest, WhatGoesBackIsIdle) {
  const CUdeviceptr first = allocate(kBytes, main_);
  const CUdeviceptr large = allocate(2 * kMiB, side_);
  const CUdeviceptr used = allocate(kBytes, side_);
  // If the memory were unmapped too early, the kernel would fail the context.
  ASSERT_EQ(driver_->launch(
                main_, {{first, kBytes}},
                [first] { memset(reinterpret_cast<void*>(first), 1, kBytes); }, milliseconds(20)),
            CUDA_SUCCESS);
  driver_->hold(side_);
  free(first);
  free(large);
  EXPECT_EQ(pool_->trim(1), 2 * kMiB) << "what became free first";
  EXPECT_EQ(source_->bytes(), 22 * kMiB);
  driver_->wait_until_idle();
  EXPECT_EQ(pool_->trim(~uint64_t{0}), 20 * kMiB);
  EXPECT_EQ(pool_->trim(~uint64_t{0}), 0u);
  EXPECT_EQ(pool_->segment_bytes(), 2 * kMiB);
  EXPECT_EQ(source_->bytes(), 2 * kMiB);
  EXPECT_FALSE(pool_->free(first)) << "its segment is gone";
  free(used);
}

TEST_F(BlockPoolTest, WhatIsKnownToBeIdleGoesBackWithoutAWait) {
  const CUdeviceptr first = allocate(kBytes, main_);
  const CUdeviceptr large = allocate(2 * kMiB, side_);
  driver_->hold(main_);
  free(first);
  free(large);
  // The first call makes the marks.
  EXPECT_TRUE(eventually([&] { return pool_->trim_idle(~uint64_t{0}) == 20 * kMiB; }));
  EXPECT_EQ(pool_->trim_idle(~uint64_t{0}), 0u) << "its stream is busy";
  EXPECT_EQ(driver_->calls("cuEventSynchronize"), 0u);
  driver_->wait_until_idle();
  EXPECT_EQ(pool_->trim_idle(~uint64_t{0}), 2 * kMiB);
}

TEST_F(BlockPoolTest, WhatWasUsedAgainIsBusyAgain) {
  driver_->hold(main_);
  const CUdeviceptr address = allocate(kBytes, main_);
  free(address);
  EXPECT_EQ(pool_->trim_idle(~uint64_t{0}), 0u) << "from here on, its end is noted";
  EXPECT_EQ(allocate(kBytes, main_), address);
  driver_->wait_until_idle();
  driver_->hold(main_);
  free(address);
  EXPECT_EQ(pool_->trim_idle(~uint64_t{0}), 0u) << "that end was another one's";
  driver_->wait_until_idle();
  EXPECT_EQ(pool_->trim_idle(~uint64_t{0}), 2 * kMiB);
}

TEST_F(BlockPoolTest, TheSourcesRefusalIsTheAnswerAndCostsNothing) {
  source_->set_limit(2 * kMiB);
  const CUdeviceptr address = allocate(kBytes, main_);
  const Result<CUdeviceptr> refused = pool_->allocate(2 * kMiB, set_of(main_));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(pool_->used_bytes(), kBytes);
  EXPECT_EQ(pool_->segment_bytes(), 2 * kMiB);
  const CUdeviceptr other = allocate(kBytes, main_);
  free(address);
  free(other);
  EXPECT_EQ(pool_->trim(1), 2 * kMiB);
  source_->set_limit(20 * kMiB);
  free(allocate(2 * kMiB, main_));
}

TEST_F(BlockPoolTest, AddressesThatAreNoBlocks) {
  int on_host = 0;
  EXPECT_FALSE(pool_->free(0));
  const CUdeviceptr address = allocate(kBytes, main_);
  const CUdeviceptr end = pool_->segments()[0].address + pool_->segments()[0].bytes;
  EXPECT_FALSE(pool_->free(reinterpret_cast<CUdeviceptr>(&on_host)));
  EXPECT_FALSE(pool_->free(end));
  EXPECT_FALSE(pool_->note_use(end, set_of(side_)));
  EXPECT_DEATH(pool_->free(address + 512), "no block in use begins there");
  EXPECT_DEATH(pool_->free(end - 512), "no block in use begins there");
  EXPECT_DEATH(pool_.reset(), "4.00 KiB of blocks are still in use");
  EXPECT_DEATH((void)pool_->allocate(0, set_of(main_)), "0 bytes");
  EXPECT_DEATH((void)pool_->allocate(1, set_of(main_) | set_of(side_)), "is not one stream");
  free(address);
  EXPECT_DEATH(pool_->free(address), "freed twice");
  EXPECT_DEATH(pool_->note_use(address, set_of(side_)), "but it was freed");
  const CUdeviceptr waiting = allocate(kBytes, main_);
  note_use(waiting, side_);
  free(waiting);
  EXPECT_DEATH(pool_->free(waiting), "freed twice");
}

// A program makes the same calls of the driver in each run, and each of these calls fails once.
TEST_F(BlockPoolTest, ARefusedCallDelaysAndLosesNothing) {
  const auto run = [this] {
    ASSERT_EQ(source_->bytes(), 0u);
    const CUdeviceptr noted = allocate(20 * kMiB, main_);
    note_use(noted, side_);
    free(noted);
    driver_->wait_until_idle();
    free(allocate(20 * kMiB, main_));
    free(allocate(20 * kMiB, side_));
    // While both streams are held, each run makes the same calls.
    driver_->hold(main_);
    driver_->hold(side_);
    EXPECT_EQ(pool_->trim_idle(~uint64_t{0}), 0u);
    driver_->wait_until_idle();
    pool_->trim(~uint64_t{0});
    EXPECT_EQ(pool_->used_bytes(), 0u);
  };
  for (const char* name :
       {"cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode", "cuStreamIsCapturing",
        "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent"}) {
    marks_.emplace(*gpu_);  // without an event to reuse
    const uint64_t calls_before = driver_->calls(name);
    run();
    ASSERT_EQ(pool_->segment_bytes(), 0u);
    const uint64_t call_count = driver_->calls(name) - calls_before;
    ASSERT_GT(call_count, 0u) << name;
    for (uint64_t nth = 1; nth <= call_count; ++nth) {
      SCOPED_TRACE(std::string(name) + ", call " + std::to_string(nth));
      // A refused call of the last round may have left the thread in this mode.
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
      ASSERT_EQ(api().cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
      marks_.emplace(*gpu_);
      driver_->fail(name, nth, CUDA_ERROR_UNKNOWN);
      const uint64_t calls_before_nth = driver_->calls(name);
      run();
      EXPECT_GE(driver_->calls(name) - calls_before_nth, nth) << "it did not fail";
      // Delayed blocks are marked now, if they were not, and go when the mark is reached.
      pool_->trim(~uint64_t{0});
      driver_->wait_until_idle();
      pool_->trim(~uint64_t{0});
      ASSERT_EQ(pool_->segment_bytes(), 0u);
    }
  }
}

TEST_F(BlockPoolTest, WhatCannotBeWaitedForStays) {
  driver_->hold(main_);
  free(allocate(kBytes, main_));
  driver_->fail("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(pool_->trim(~uint64_t{0}), 0u);
  driver_->wait_until_idle();
  EXPECT_EQ(pool_->trim(~uint64_t{0}), 2 * kMiB);
}

TEST_F(BlockPoolTest, TheEndWaitsForWhatIsFreed) {
  const CUdeviceptr noted = allocate(2 * kMiB, main_);
  const CUdeviceptr own = allocate(kBytes, main_);
  note_use(noted, side_);
  for (const CUstream stream : {main_, side_}) {
    ASSERT_EQ(driver_->launch(
                  stream, {{noted, kBytes}, {own, kBytes}}, [] {}, milliseconds(20)),
              CUDA_SUCCESS);
  }
  free(noted);
  free(own);
  pool_.reset();
  EXPECT_TRUE(driver_->is_idle());
  EXPECT_EQ(source_->bytes(), 0u);
}

TEST_F(BlockPoolTest, AfterAFailureOfTheContextNothingIsGivenBack) {
  const CUdeviceptr noted = allocate(2 * kMiB, main_);
  const CUdeviceptr own = allocate(kBytes, main_);
  note_use(noted, side_);
  free(noted);
  has_failed_ = true;
  driver_->fail_context(CUDA_ERROR_ILLEGAL_ADDRESS);
  free(own);
  EXPECT_EQ(pool_->trim(~uint64_t{0}), 0u);
  const CUdeviceptr again = allocate(kBytes, main_);
  EXPECT_EQ(again, own) << "its own stream's order holds";
  free(again);
  ::testing::internal::CaptureStderr();
  pool_.reset();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("22.0 MiB of GPU memory are not given back"), std::string::npos) << said;
  EXPECT_EQ(source_->bytes(), 22 * kMiB);
}

// ---- An earlier state --------------------------------------------------------------------------

TEST_F(BlockPoolTest, AnEarlierStateHasItsBlocksAtTheirAddresses) {
  const CUdeviceptr dead = allocate(kBytes, main_);
  const CUdeviceptr kept = allocate(2 * kBytes - 1, main_);
  const CUdeviceptr large = allocate(3 * kMiB, main_);
  free(dead);
  const std::vector<SegmentView> state = pool_->segments();
  free(kept);
  free(large);
  const CUdeviceptr newer = allocate(22 * kMiB, main_);
  const CUdeviceptr across = allocate(4 * kBytes, main_);
  ASSERT_LT(across, kept) << "it lies where several blocks were";

  const Result<RestoredBlocks> restored = pool_->restore(state);
  ASSERT_TRUE(restored.is_ok()) << restored.status().message();
  EXPECT_EQ(as_set(restored.value().freed), (std::set<CUdeviceptr>{newer, across}));
  EXPECT_EQ(as_set(restored.value().allocated), (std::set<CUdeviceptr>{kept, large}));
  EXPECT_EQ(view_of(kept).bytes, 2 * kBytes);
  EXPECT_EQ(view_of(kept).requested_bytes, 2 * kBytes - 1);
  EXPECT_EQ(view_of(newer).state, BlockState::kFree);
  EXPECT_EQ(pool_->used_bytes(), 2 * kBytes + 3 * kMiB);
  const ProgramUses uses = use_.read();
  EXPECT_EQ(uses.all.bytes.current, 2 * kBytes + 3 * kMiB);
  EXPECT_EQ(uses.all.active_count.current, 2u);
  EXPECT_EQ(allocate(kBytes, main_), dead) << "what was free then is free again";
  for (const CUdeviceptr address : {dead, kept, large}) free(address);
}

TEST_F(BlockPoolTest, AnEarlierStateComesBackTwice) {
  const CUdeviceptr first = allocate(kBytes, main_);
  const std::vector<SegmentView> state = pool_->segments();
  for (int round = 0; round < 2; ++round) {
    const CUdeviceptr next = allocate(kBytes, main_);
    EXPECT_EQ(next, first + kBytes);
    ASSERT_TRUE(pool_->restore(state).is_ok());
    EXPECT_EQ(view_of(first).state, BlockState::kActive);
    EXPECT_EQ(view_of(next).state, BlockState::kFree);
  }
  free(first);
}

TEST_F(BlockPoolTest, AnEarlierStateWaitsForOtherStreams) {
  const std::vector<SegmentView> empty = pool_->segments();
  const CUdeviceptr used = allocate_beside_another(main_);
  const CUdeviceptr freed = allocate(kBytes, main_);
  std::atomic<bool> is_done = false;
  ASSERT_EQ(driver_->launch(
                side_, {}, [&] { is_done = true; }, milliseconds(50)),
            CUDA_SUCCESS);
  note_use(used, side_);
  note_use(freed, side_);
  free(freed);
  ASSERT_TRUE(pool_->restore(empty).is_ok());
  EXPECT_TRUE(is_done);
  EXPECT_EQ(pool_->used_bytes(), 0u);
}

TEST_F(BlockPoolTest, ASegmentReturnsToItsStreamOnceTheOtherIsDone) {
  const CUdeviceptr address = allocate(20 * kMiB, main_);
  const std::vector<SegmentView> state = pool_->segments();
  free(address);
  ASSERT_EQ(allocate(20 * kMiB, side_), address);
  std::atomic<bool> is_done = false;
  ASSERT_EQ(driver_->launch(
                side_, {}, [&] { is_done = true; }, milliseconds(50)),
            CUDA_SUCCESS);
  ASSERT_TRUE(pool_->restore(state).is_ok());
  EXPECT_TRUE(is_done);
  EXPECT_EQ(view_of(address).streams, set_of(main_));
  free(address);
  EXPECT_EQ(allocate(20 * kMiB, main_), address);
  free(address);
}

TEST_F(BlockPoolTest, NothingChangesWhereAnEarlierStateCannotBe) {
  const CUdeviceptr large = allocate(20 * kMiB, main_);
  const std::vector<SegmentView> state = pool_->segments();
  free(large);
  pool_->trim(~uint64_t{0});
  const CUdeviceptr small = allocate_beside_another(main_);
  EXPECT_EQ(pool_->restore(state).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(view_of(small).state, BlockState::kActive);

  const std::vector<SegmentView> now = pool_->segments();
  note_use(small, side_);
  driver_->set_capturing(side_, true);
  EXPECT_EQ(pool_->restore(now).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(view_of(small).streams, set_of(main_) | set_of(side_));
  free(small);
  EXPECT_EQ(pool_->restore(now).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(view_of(small).state, BlockState::kWaiting);
  driver_->set_capturing(side_, false);
  free(kept_);
}

}  // namespace
}  // namespace tencache
