// SPDX-License-Identifier: Apache-2.0
//
// A whole allocator over the simulated driver: tensors leave the GPU and come back in time,
// whatever streams use them; memory is reused only when the device is done with it; and no thread
// waits for data. backends_test.cpp has the properties of any backend.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "engine/engine.h"
#include "support/child_process.h"
#include "support/cuda/test_cuda_engine.h"
#include "support/eventually.h"

namespace tencache {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kBytes = 4 * kMiB;

class CudaEngineTest : public ::testing::Test {
 protected:
  ~CudaEngineTest() override {
    if (!engine_.has_value()) return;
    for (char* address : allocated_) engine_->free(address);
    EXPECT_EQ(engine_->check_books(), "");
  }
  void start(const TestCudaEngine::Adjust& adjust = {}, const SimulatedDriverConfig& driver = {}) {
    engine_.emplace(adjust, driver);
    stream_ = engine_->make_stream();
  }
  char* allocate(uint64_t bytes = kBytes) {
    allocated_.push_back(engine_->allocate(bytes, stream_));
    return allocated_.back();
  }
  void free(char* address) {
    std::erase(allocated_, address);
    engine_->free(address);
  }

  std::optional<TestCudaEngine> engine_;
  CUstream stream_ = nullptr;
  std::vector<char*> allocated_;
};

// A cold tensor keeps its addresses, so there are enough for what all tiers hold.
TEST_F(CudaEngineTest, AllTiersTogetherFindAddresses) {
  const auto arena_bytes_with = [](uint64_t host_bytes) {
    TestCudaEngine engine([=](CudaEngineConfig& config) {
      config.arena_bytes = 0;
      config.host->budget_bytes = host_bytes;
    });
    return engine.device().heap().arena().bytes();
  };
  const uint64_t least_bytes = arena_bytes_with(kMiB);
  EXPECT_EQ(arena_bytes_with(least_bytes), 3 * least_bytes + least_bytes / 8 * 3);
}

// The op that needs a cold tensor is queued at once, behind the copy on the device.
TEST_F(CudaEngineTest, NoThreadWaitsForData) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 3);
  ASSERT_TRUE(engine_->evict(tensor));
  engine_->driver().hold_copies();  // a wait for one would never end
  engine_->check(stream_, tensor, kBytes, 3);
  EXPECT_EQ(engine_->state(tensor), ExtentState::kArriving);
  // Another stream that uses it waits for the same copy.
  CUstream other = engine_->make_stream();
  engine_->check(other, tensor, kBytes, 3);
  EXPECT_EQ(engine_->state(tensor), ExtentState::kArriving);
  engine_->driver().let_go();
  engine_->wait_until_idle();
  EXPECT_EQ(engine_->stats().fetched_bytes, kBytes);
}

// A tensor only read since it came back is dropped: its copy from last time is proved to equal it.
TEST_F(CudaEngineTest, CleanTensorsLeaveWithoutACopy) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  ASSERT_TRUE(engine_->evict(tensor));
  EXPECT_EQ(engine_->extent(tensor)->frame.bytes, 0u) << "it has no memory of the GPU any more";
  engine_->check(stream_, tensor, kBytes, 1);
  engine_->wait_until_idle();
  const uint64_t copies = engine_->driver().calls("cuMemcpyDtoHAsync");
  EXPECT_TRUE(engine_->evict(tensor));
  EXPECT_EQ(engine_->driver().calls("cuMemcpyDtoHAsync"), copies);
  EXPECT_EQ(engine_->stats().clean_dropped_bytes, kBytes);
  engine_->check(stream_, tensor, kBytes, 1);
  // After a write the tensor is copied again.
  engine_->write(stream_, tensor, kBytes, 2);
  engine_->wait_until_idle();
  EXPECT_TRUE(engine_->evict(tensor));
  EXPECT_EQ(engine_->driver().calls("cuMemcpyDtoHAsync"), copies + 1);
  EXPECT_EQ(engine_->stats().clean_dropped_bytes, kBytes);
  engine_->check(stream_, tensor, kBytes, 2);
}

// A kernel that no gate announced wrote the tensor: the hash shows that, and the new bytes are
// copied.
TEST_F(CudaEngineTest, UnannouncedWritesAreFound) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  ASSERT_TRUE(engine_->evict(tensor));
  engine_->check(stream_, tensor, kBytes, 1);
  ASSERT_TRUE(engine_->extent(tensor)->is_presumed_clean());
  const DeviceRange range{reinterpret_cast<CUdeviceptr>(tensor), kBytes, true};
  ASSERT_EQ(engine_->driver().launch(stream_, {range}, [&] { tensor[kBytes / 2 + 11] ^= 1; }),
            CUDA_SUCCESS);
  engine_->wait_until_idle();
  const char changed = tensor[kBytes / 2 + 11];
  EXPECT_TRUE(engine_->evict(tensor));
  EXPECT_EQ(engine_->stats().clean_dropped_bytes, 0u);
  engine_->check(stream_, tensor, kBytes, 1);
  engine_->wait_until_idle();
  EXPECT_EQ(tensor[kBytes / 2 + 11], changed);
}

TEST_F(CudaEngineTest, WithoutACompilerEveryEvictionCopies) {
  start([](CudaEngineConfig& config) { config.nvrtc.reset(); });
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(engine_->evict(tensor));
    engine_->check(stream_, tensor, kBytes, 1);
    engine_->wait_until_idle();
    (*engine_)->mover()->settle(false);
    EXPECT_EQ(engine_->device().host()->stats().asked_bytes, 0u);
  }
  EXPECT_EQ(engine_->stats().clean_dropped_bytes, 0u);
}

// Work that is queued before an eviction runs before the copy that takes the bytes away.
TEST_F(CudaEngineTest, EvictionWaitsForQueuedWork) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  engine_->write(stream_, tensor, kBytes, 2, milliseconds(30));
  EXPECT_TRUE(engine_->evict(tensor));
  engine_->check(stream_, tensor, kBytes, 2);
}

TEST_F(CudaEngineTest, EvictionWaitsForEveryStreamThatUsedIt) {
  start();
  CUstream other = engine_->make_stream();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  engine_->order(stream_, other);
  engine_->write(other, tensor, kBytes, 2, milliseconds(30));
  EXPECT_TRUE(engine_->evict(tensor));
  engine_->check(stream_, tensor, kBytes, 2);
}

// The simulated driver ends the process when it is asked about a destroyed stream.
TEST_F(CudaEngineTest, EvictionWaitsForTheWorkOfADestroyedStream) {
  start();
  CUstream other = engine_->make_stream();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  engine_->order(stream_, other);
  engine_->write(other, tensor, kBytes, 2, milliseconds(30));
  engine_->destroy_stream(other);
  EXPECT_TRUE(engine_->evict(tensor));
  engine_->check(stream_, tensor, kBytes, 2);
}

TEST_F(CudaEngineTest, MemoryOfADestroyedStreamServesOthersAfterItsWork) {
  start();
  CUstream other = engine_->make_stream();
  char* first = engine_->allocate(kBytes, other);
  char* small = engine_->allocate(kMiB, other);
  engine_->write(other, first, kBytes, 1, milliseconds(30));
  engine_->check(other, first, kBytes, 1);
  engine_->destroy_stream(other);
  engine_->free(first);
  engine_->free(small);
  char* second = allocate();
  EXPECT_EQ(second, first);
  engine_->write(stream_, second, kBytes, 2);
  engine_->check(stream_, second, kBytes, 2);
  EXPECT_EQ(allocate(kMiB), small);
  free(second);
  EXPECT_EQ((*engine_)->heap().drop_cached(kBytes), kBytes);
}

// The new stream has the memory of the old one, which is still at work in it.
TEST_F(CudaEngineTest, AStreamWithTheHandleOfAnotherIsNotTakenForIt) {
  start({}, {.reuses_stream_handles = true});
  CUstream old = engine_->make_stream();
  char* first = engine_->allocate(kBytes, old);
  engine_->driver().hold(old);
  engine_->write(old, first, kBytes, 1);
  engine_->check(old, first, kBytes, 1);
  engine_->free(first);
  engine_->destroy_stream(old);
  CUstream young = engine_->make_stream();
  ASSERT_EQ(young, old);
  char* second = engine_->allocate(kBytes, young);
  EXPECT_EQ(second, first);
  engine_->write(young, second, kBytes, 2);
  EXPECT_TRUE(eventually([&] { return engine_->driver().is_stuck(); }));
  engine_->driver().let_go();
  engine_->check(young, second, kBytes, 2);
  allocated_.push_back(second);
}

TEST_F(CudaEngineTest, UseWhileItIsCopiedKeepsItResident) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  const uint64_t copies = engine_->driver().calls("cuMemcpyDtoHAsync");
  engine_->driver().hold_copies();
  std::jthread evictor([&] { EXPECT_FALSE(engine_->evict(tensor)); });
  EXPECT_TRUE(eventually([&] { return engine_->driver().calls("cuMemcpyDtoHAsync") > copies; }));
  EXPECT_EQ(engine_->state(tensor), ExtentState::kEvicting);
  engine_->write(stream_, tensor, kBytes, 2);
  engine_->driver().let_go();
  evictor.join();
  EXPECT_EQ(engine_->state(tensor), ExtentState::kResident);
  EXPECT_FALSE(engine_->extent(tensor)->host_block.is_valid());
  engine_->check(stream_, tensor, kBytes, 2);
}

TEST_F(CudaEngineTest, FullHostTierIsAnOutOfMemoryError) {
  start([](CudaEngineConfig& config) { config.host->budget_bytes = 16 * kMiB; });
  std::string refusal;
  for (uint64_t index = 0; index < 40 && refusal.empty(); ++index) {
    const Result<void*> address = (*engine_)->allocate(kBytes, stream_);
    if (!address.is_ok()) {
      EXPECT_EQ(address.status().code(), StatusCode::kOutOfMemory);
      refusal = address.status().message();
      break;
    }
    allocated_.push_back(static_cast<char*>(address.value()));
    engine_->write(stream_, allocated_.back(), kBytes, index);
  }
  EXPECT_NE(refusal.find(" out of memory."), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("host"), std::string::npos) << refusal;
  for (uint64_t index = 0; index < allocated_.size(); ++index) {
    engine_->check(stream_, allocated_[index], kBytes, index);
  }
}

// The thread goes on, and the device waits. The test repeats this until a wait of the device's
// shows, however busy the machine is.
TEST_F(CudaEngineTest, FetchedAheadAndStillOnItsWayIsLate) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 5);
  uint64_t rounds = 0;
  for (auto held = std::chrono::milliseconds(1); engine_->stats().late_fetches == 0; held *= 2) {
    ASSERT_LT(++rounds, 16u) << "no wait of the device's was ever seen";
    ASSERT_TRUE(engine_->evict(tensor));
    engine_->driver().hold_copies();
    EXPECT_EQ(engine_->prefetch({tensor}), 1u);
    engine_->check(stream_, tensor, kBytes, 5);
    std::this_thread::sleep_for(held);
    engine_->driver().let_go();
    engine_->wait_until_idle();
    (*engine_)->mover()->settle(true);
  }
  EXPECT_GT(engine_->stats().stall_ns, 0u);
  EXPECT_EQ(engine_->stats().early_fetches + engine_->stats().late_fetches, rounds);
}

TEST_F(CudaEngineTest, AFetchCountsOnceHoweverManyViewsAnOpNames) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 5);
  ASSERT_TRUE(engine_->evict(tensor));
  const std::vector<Access> views = {
      {tensor, AccessMode::kRead}, {tensor + kMiB, AccessMode::kRead}, {tensor, AccessMode::kRead}};
  (*engine_)->open_op(0, views, stream_);
  (*engine_)->gate().close();
  engine_->wait_until_idle();
  (*engine_)->mover()->settle(true);
  EXPECT_EQ(engine_->stats().early_fetches + engine_->stats().late_fetches, 1u);
  EXPECT_LE(engine_->stats().early_fetched_bytes, kBytes);
}

// An op finds an extent that another thread has landed since the op pinned it.
TEST_F(CudaEngineTest, LandedWhileAnOpLooksForItIsEarly) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 5);
  ASSERT_TRUE(engine_->evict(tensor));
  EXPECT_EQ(engine_->prefetch({tensor}), 1u);
  engine_->wait_until_idle();
  (*engine_)->mover()->settle(true);
  Extent* const extents[] = {engine_->extent(tensor)};
  ASSERT_EQ(extents[0]->state(), ExtentState::kResident);
  (*engine_)->mover()->fetch(extents, kNoStreams, nullptr);
  EXPECT_EQ(engine_->stats().early_fetches, 1u);
  EXPECT_EQ(engine_->stats().early_fetched_bytes, kBytes);
  ASSERT_TRUE(engine_->evict(tensor));
  EXPECT_EQ(engine_->stats().wasted_fetches, 0u);
}

// In whatever state an extent is freed, its bytes are dropped, and its memory is reused once that
// is safe.
TEST_F(CudaEngineTest, FreeInEveryState) {
  start({}, {.to_device_bytes_per_s = 256 * kMiB, .to_host_bytes_per_s = 256 * kMiB});
  char* cold = allocate();
  engine_->write(stream_, cold, kBytes, 1);
  ASSERT_TRUE(engine_->evict(cold));
  free(cold);
  EXPECT_EQ(engine_->device().host()->stats().asked_bytes, 0u);

  char* arriving = allocate();
  engine_->write(stream_, arriving, kBytes, 1);
  ASSERT_TRUE(engine_->evict(arriving));
  engine_->driver().hold_copies();
  engine_->check(stream_, arriving, kBytes, 1);
  ASSERT_EQ(engine_->state(arriving), ExtentState::kArriving);
  free(arriving);
  engine_->driver().let_go();
  char* next = allocate();
  engine_->write(stream_, next, kBytes, 2);
  engine_->check(stream_, next, kBytes, 2);

  std::jthread evictor([&] { engine_->evict(next); });
  while (engine_->state(next) == ExtentState::kResident) std::this_thread::yield();
  free(next);
  char* last = allocate();
  engine_->write(stream_, last, kBytes, 3);
  evictor.join();
  engine_->check(stream_, last, kBytes, 3);
}

// A capturing stream cannot be waited for: tensors that it uses stay, all others leave.
TEST_F(CudaEngineTest, CapturingStreamHoldsNoOtherTensor) {
  start([](CudaEngineConfig& config) { config.budget_bytes = 16 * kMiB; });
  CUstream capturing = engine_->make_stream();
  char* captured = allocate();
  char* free_to_go = allocate();
  engine_->write(stream_, captured, kBytes, 1);
  engine_->write(stream_, free_to_go, kBytes, 2);
  engine_->order(stream_, capturing);
  engine_->check(capturing, captured, kBytes, 1);
  engine_->wait_until_idle();
  engine_->driver().set_capturing(capturing, true);
  Extent* both[] = {engine_->extent(captured), engine_->extent(free_to_go)};
  EXPECT_EQ((*engine_)->mover()->evict(both).count, 1u);
  EXPECT_EQ(engine_->state(captured), ExtentState::kResident);
  EXPECT_EQ(engine_->state(free_to_go), ExtentState::kCold);
  EXPECT_EQ(engine_->stats().eviction_failures, 0u);
  // Cached memory of other streams can still be dropped.
  char* of_capturing = engine_->allocate(kBytes, capturing);
  char* of_other = allocate();
  engine_->free(of_capturing);
  free(of_other);
  EXPECT_EQ((*engine_)->heap().drop_cached(~uint64_t{0}), kBytes);
  engine_->driver().set_capturing(capturing, false);
  EXPECT_EQ((*engine_)->heap().drop_cached(~uint64_t{0}), kBytes);
  engine_->check(stream_, free_to_go, kBytes, 2);
}

// The first use of a tensor that has landed records that, so that later uses find it resident.
TEST_F(CudaEngineTest, UseOfWhatHasLandedSettlesIt) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 5);
  ASSERT_TRUE(engine_->evict(tensor));
  engine_->driver().hold_copies();
  engine_->check(stream_, tensor, kBytes, 5);
  engine_->driver().let_go();
  engine_->wait_until_idle();
  ASSERT_EQ(engine_->state(tensor), ExtentState::kArriving);
  engine_->check(stream_, tensor, kBytes, 5);
  EXPECT_EQ(engine_->state(tensor), ExtentState::kResident);
}

TEST_F(CudaEngineTest, LinkThatCannotBeMeasuredIsNoError) {
  start([](CudaEngineConfig& config) {
    config.probe_bytes = 64 * kMiB;
    config.host->budget_bytes = kMiB;
  });
  EXPECT_EQ((*engine_)->mover()->ledger().read_speed.bytes_per_s(-1), -1);
}

TEST_F(CudaEngineTest, ForkedChildGetsNoMemory) {
  start();
  engine_->write(stream_, allocate(), kBytes, 1);
  free(allocated_.back());
  engine_->wait_until_idle();
  EXPECT_EQ(run_in_child([&] {
              const Result<void*> refused = (*engine_)->allocate(kBytes, stream_);
              ASSERT_FALSE(refused.is_ok());
              EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
            }),
            0);
}

TEST_F(CudaEngineTest, SameStreamHasItAgainAtOnce) {
  start();
  char* first = allocate();
  engine_->driver().hold(stream_);
  engine_->write(stream_, first, kBytes, 1);
  free(first);
  EXPECT_EQ(allocate(), first) << "before the kernel has run";
}

TEST_F(CudaEngineTest, AnotherStreamTakesItOverOnTheDevice) {
  start();
  CUstream other = engine_->make_stream();
  char* first = allocate();
  engine_->write(stream_, first, kBytes, 1, milliseconds(30));
  engine_->check(stream_, first, kBytes, 1);
  free(first);
  char* second = engine_->allocate(kBytes, other);
  allocated_.push_back(second);
  EXPECT_EQ(second, first);
  engine_->write(other, second, kBytes, 2);
  engine_->check(other, second, kBytes, 2);
}

TEST_F(CudaEngineTest, RecordedStreamsKeepItFromReuse) {
  start();
  CUstream other = engine_->make_stream();
  char* first = allocate();
  engine_->write(stream_, first, kBytes, 1);
  engine_->order(stream_, other);
  engine_->device().record_stream(first + 100, other);
  // No gate announces this use, as with a collective's kernel.
  const DeviceRange range{reinterpret_cast<CUdeviceptr>(first), kBytes, false};
  engine_->driver().hold(other);
  ASSERT_EQ(
      engine_->driver().launch(other, {range}, [&] { EXPECT_TRUE(has_stamp(first, kBytes, 1)); }),
      CUDA_SUCCESS);
  free(first);
  char* second = allocate();
  EXPECT_NE(second, first);
  engine_->write(stream_, second, kBytes, 2);
  engine_->wait_until_idle();
  char* third = allocate();
  EXPECT_EQ(third, first);
}

// However many extents wait for a stream, an allocation asks it once whether it is done.
TEST_F(CudaEngineTest, WhatWaitsForAStreamAsksItOnce) {
  start();
  CUstream other = engine_->make_stream();
  engine_->driver().hold(other);
  for (int count = 0; count < 8; ++count) {
    engine_->device().record_stream(allocate(), other);
  }
  for (char* tensor : std::vector<char*>(allocated_)) free(tensor);
  const uint64_t queries = engine_->driver().calls("cuEventQuery");
  char* next = allocate();
  EXPECT_EQ(engine_->driver().calls("cuEventQuery"), queries + 1);
  engine_->wait_until_idle();
  EXPECT_EQ(engine_->waiting_count(), 8u);
  engine_->write(stream_, next, kBytes, 1);
  allocate(2 * kBytes);  // looks again
  EXPECT_EQ(engine_->waiting_count(), 0u);
}

// While there is enough room, nobody needs to know when the device is done with a freed extent.
TEST_F(CudaEngineTest, FreesCostNoEventsWhereMemoryIsNotScarce) {
  start();
  const auto events = [this] { return engine_->driver().calls("cuEventRecord"); };
  const auto free_often = [this] {
    for (int count = 0; count < 10; ++count) free(allocate());
  };
  const uint64_t events_before = events();
  free_often();
  EXPECT_EQ(events(), events_before);
  allocate(52 * kMiB);
  free_often();
  EXPECT_GT(events(), events_before);
}

// Where memory is scarce, freed memory is available as soon as the device has come to the free,
// whatever was queued since.
TEST_F(CudaEngineTest, CachedMemoryWaitsForItsFreeAlone) {
  start();
  allocate(48 * kMiB);
  char* freed = allocate();
  char* other = allocate();
  engine_->write(stream_, freed, kBytes, 1, std::chrono::milliseconds(50));
  engine_->wait_until_idle();
  free(freed);
  engine_->driver().hold(stream_);
  engine_->write(stream_, other, kBytes, 2);
  EXPECT_EQ((*engine_)->heap().drop_cached(kBytes), kBytes);  // or it would never return
  free(other);
  EXPECT_EQ((*engine_)->heap().drop_idle_cached(kBytes), 0u) << "the device still writes it";
  engine_->wait_until_idle();
  EXPECT_EQ((*engine_)->heap().drop_idle_cached(kBytes), kBytes);
}

// A request of another size gets cached memory, once the device is done with it.
TEST_F(CudaEngineTest, CachedMemoryServesOtherSizes) {
  start([](CudaEngineConfig& config) { config.budget_bytes = 16 * kMiB; });
  for (int index = 0; index < 4; ++index) engine_->write(stream_, allocate(), kBytes, 1);
  engine_->write(stream_, allocated_.back(), kBytes, 2, milliseconds(30));
  for (char* tensor : std::vector<char*>(allocated_)) free(tensor);
  EXPECT_EQ((*engine_)->heap().cached_bytes(), 16 * kMiB);
  char* large = allocate(12 * kMiB);
  engine_->write(stream_, large, 12 * kMiB, 3);
  EXPECT_EQ(engine_->stats().over_budget_events, 0u);
  EXPECT_EQ(engine_->stats().evicted_bytes, 0u);
}

// A thread that waits for freed memory, instead of taking more, counts that as a wait.
TEST_F(CudaEngineTest, WaitsForFreedMemoryCount) {
  start();
  char* tensor = allocate();
  engine_->driver().hold(stream_);
  engine_->write(stream_, tensor, kBytes, 1);
  free(tensor);
  EXPECT_EQ(engine_->stats().thread_wait_ns, 0u);
  std::jthread release([&] {
    EXPECT_TRUE(eventually([&] { return engine_->driver().calls("cuEventSynchronize") > 0; }));
    engine_->driver().let_go();
  });
  allocate(kBytes / 2);
  EXPECT_GT(engine_->stats().thread_wait_ns, 0u);
}

TEST_F(CudaEngineTest, SmallBlocksAreResident) {
  start();
  char* small = allocate(1000);
  EXPECT_EQ(engine_->extent(small), nullptr);
  engine_->write(stream_, small, 1000, 4);
  EXPECT_EQ((*engine_)->budget().used(), 2 * kMiB);
  engine_->check(stream_, small, 1000, 4);
}

// Small blocks keep their segments on the GPU while they live, and each stream has its own.
TEST_F(CudaEngineTest, SegmentsAreInKeepingWithTheBudget) {
  start();
  for (int count = 0; count < 8; ++count) {
    stream_ = engine_->make_stream();
    EXPECT_EQ(engine_->extent(allocate(kMiB + 1)), nullptr);
  }
  EXPECT_EQ((*engine_)->budget().used(), 8 * 4 * kMiB);
  EXPECT_EQ(engine_->stats().over_budget_events, 0u);
}

TEST_F(CudaEngineTest, LargeBudgetsHaveSegmentsOfPyTorchsSize) {
  start([](CudaEngineConfig& config) { config.budget_bytes = 2 * kGiB; },
        {.capacity_bytes = 3 * kGiB});
  allocate(kMiB + 1);
  EXPECT_EQ((*engine_)->budget().used(), 20 * kMiB);
}

TEST_F(CudaEngineTest, LinkIsMeasuredBeforehand) {
  start([](CudaEngineConfig& config) { config.probe_bytes = 32 * kMiB; },
        {.to_device_bytes_per_s = kGiB, .to_host_bytes_per_s = 2 * kGiB});
  const double to_device = (*engine_)->mover()->ledger().read_speed.bytes_per_s(0);
  const double to_host = (*engine_)->mover()->ledger().write_speed.bytes_per_s(0);
  EXPECT_GT(to_device, 0.0);
  EXPECT_LE(to_device, 1.01 * static_cast<double>(kGiB));
  EXPECT_GT(to_host, 0.0);
  EXPECT_LE(to_host, 2.02 * static_cast<double>(kGiB));
  EXPECT_EQ((*engine_)->budget().used(), 0u);
  // The measurement shows in no figure of the program.
  EXPECT_EQ(engine_->device().view().uses().all.bytes.peak, 0u);
  EXPECT_EQ(engine_->device().view().uses().all.bytes.added, 0u);
  EXPECT_EQ(engine_->stats().peak_device_bytes, 0u);
  const FrameUse frames = engine_->device().view().frames().all;
  for (const UseCount& count : {frames.bytes, frames.frames}) {
    EXPECT_EQ(count.current, 0u) << "the driver has the memory again";
    EXPECT_EQ(count.peak, 0u);
    EXPECT_EQ(count.added, 0u);
    EXPECT_EQ(count.removed, 0u);
  }
}

}  // namespace
}  // namespace tencache
