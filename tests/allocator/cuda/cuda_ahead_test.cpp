// SPDX-License-Identifier: Apache-2.0
//
// A program that is ahead of its GPU. An eviction that a plan requests waits for the work queued
// before the request and for no other, unless the extent was used since. Evictions go in parts. A
// thread that lacks room lets earlier fetches go first while the device has work. Fetches arrive
// one after another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "platform/cuda/copy_pause.h"
#include "support/cuda/test_cuda_engine.h"
#include "support/eventually.h"
#include "support/listed_requests.h"

namespace tencache {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

constexpr uint64_t kBytes = 4 * kMiB;

class CudaAheadTest : public ::testing::Test {
 protected:
  ~CudaAheadTest() override {
    for (char* address : allocated_) engine_->free(address);
    EXPECT_EQ(engine_->check_books(), "");
  }
  void start(const SimulatedDriverConfig& driver = {}) {
    engine_.emplace(TestCudaEngine::Adjust(), driver);
    stream_ = engine_->make_stream();
  }
  /// Starts with a link that moves a tensor in 60 ms, and an engine that has measured it.
  void start_slow() {
    engine_.emplace(
        [](CudaEngineConfig& config) {
          config.budget_bytes = 64 * kMiB;
          config.probe_bytes = 16 * kMiB;
        },
        SimulatedDriverConfig{.to_device_bytes_per_s = 64 * kMiB,
                              .to_host_bytes_per_s = 64 * kMiB});
    stream_ = engine_->make_stream();
  }
  char* allocate(uint64_t bytes = kBytes) {
    return allocated_.emplace_back(engine_->allocate(bytes, stream_));
  }
  /// One tensor for each seed from 0, with its stamp.
  std::vector<char*> allocate_stamped(uint64_t count, uint64_t bytes = kBytes) {
    std::vector<char*> tensors;
    for (uint64_t seed = 0; seed < count; ++seed) {
      tensors.push_back(allocate(bytes));
      engine_->write(stream_, tensors.back(), bytes, seed);
    }
    return tensors;
  }
  void check_stamped(const std::vector<char*>& tensors, uint64_t bytes = kBytes) {
    for (uint64_t seed = 0; seed < tensors.size(); ++seed) {
      engine_->check(stream_, tensors[seed], bytes, seed);
    }
  }
  /// A request, made now, that this tensor leave.
  std::vector<MoveRequest> request(const char* tensor) {
    Extent* extent = engine_->extent(tensor);
    std::vector<MoveRequest> requests = {{extent, extent->id.load(), extent->bytes, timestamp()}};
    requests[0].queued = mover().queued_work(requests);
    EXPECT_NE(requests[0].queued, nullptr);
    return requests;
  }
  /// Carries out the requests, and returns how many extents have left.
  uint64_t evict_requested(const std::vector<MoveRequest>& requests) {
    ListedEvictions source(requests);
    mover().evict_requested(source);
    return source.total().count;
  }
  /// Requests the tensor's eviction as a plan does, and returns once its copy is queued.
  void request_and_await_copy(const char* tensor) {
    const uint64_t copies_before = engine_->driver().calls("cuMemcpyDtoHAsync");
    (*engine_)->evictor().request(request(tensor));
    EXPECT_TRUE(
        eventually([&] { return engine_->driver().calls("cuMemcpyDtoHAsync") > copies_before; }));
  }
  Mover& mover() { return *(*engine_)->mover(); }

  /// Queues a write of kUseTime that no gate announces.
  void use_unannounced(char* tensor, uint64_t seed) {
    used_at_ = std::chrono::steady_clock::now();
    ASSERT_EQ(engine_->driver().launch(
                  stream_, {{reinterpret_cast<CUdeviceptr>(tensor), kBytes}},
                  [tensor, seed] { stamp(tensor, kBytes, seed); }, kUseTime),
              CUDA_SUCCESS);
  }
  /// Expects that the last unannounced use has ended, because somebody waited for it.
  void expect_awaited() { EXPECT_GE(std::chrono::steady_clock::now() - used_at_, kUseTime); }

  static constexpr milliseconds kUseTime{50};
  std::chrono::steady_clock::time_point used_at_;
  std::optional<TestCudaEngine> engine_;
  CUstream stream_ = nullptr;
  std::vector<char*> allocated_;
};

// A requested eviction is marked at the request: it need not wait for work queued afterwards.
TEST_F(CudaAheadTest, RequestedEvictionsWaitForNothingQueuedSince) {
  start();
  char* tensor = allocate();
  char* other = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  const std::vector<MoveRequest> requests = request(tensor);
  engine_->driver().hold(stream_);  // a wait for it would never end
  engine_->write(stream_, other, kBytes, 2);
  EXPECT_EQ(evict_requested(requests), 1u);
  EXPECT_GT(engine_->driver().unfinished(stream_), 0u);
  engine_->driver().let_go();
  engine_->check(stream_, tensor, kBytes, 1);
}

// An unused extent does not wait for work queued since the last eviction either.
TEST_F(CudaAheadTest, EvictionsWaitForNothingQueuedSinceAnother) {
  start();
  char* idle = allocate();
  char* first = allocate();
  char* used = allocate();
  engine_->write(stream_, idle, kBytes, 1);
  engine_->write(stream_, first, kBytes, 2);
  ASSERT_TRUE(engine_->evict(first));
  engine_->driver().hold(stream_);  // a wait for it would never end
  engine_->write(stream_, used, kBytes, 3);
  EXPECT_TRUE(engine_->evict(idle));
  EXPECT_GT(engine_->driver().unfinished(stream_), 0u);
  engine_->driver().let_go();
  engine_->check(stream_, idle, kBytes, 1);
  engine_->check(stream_, first, kBytes, 2);
  engine_->check(stream_, used, kBytes, 3);
}

// Many moments later an old moment is forgotten; a later one covers it.
TEST_F(CudaAheadTest, AForgottenMomentCostsNoMoreThanALaterOne) {
  start();
  char* idle = allocate();
  char* used = allocate();
  engine_->write(stream_, idle, kBytes, 1);
  engine_->write(stream_, used, kBytes, 2);
  for (int count = 0; count < 200; ++count) (void)request(used);
  engine_->driver().hold(stream_);  // a wait for it would never end
  engine_->check(stream_, used, kBytes, 2);
  EXPECT_TRUE(engine_->evict(idle));
  EXPECT_GT(engine_->driver().unfinished(stream_), 0u);
  engine_->driver().let_go();
  engine_->check(stream_, idle, kBytes, 1);
}

// An eviction waits for a use since the request, even for one just after the check for uses.
TEST_F(CudaAheadTest, UseAfterTheRequestIsAwaited) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  std::vector<MoveRequest> requests = request(tensor);
  const CUstream other = engine_->make_stream();
  engine_->order(stream_, other);
  used_at_ = std::chrono::steady_clock::now();
  engine_->write(other, tensor, kBytes, 2, kUseTime);
  requests[0].given_at = timestamp();
  EXPECT_EQ(evict_requested(requests), 1u);
  expect_awaited();
  engine_->check(stream_, tensor, kBytes, 2);
}

// The use was announced by the program (record_stream), not by a gate.
TEST_F(CudaAheadTest, RecordedUseAfterTheRequestIsAwaited) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  std::vector<MoveRequest> requests = request(tensor);
  use_unannounced(tensor, 2);
  engine_->device().record_stream(tensor, stream_);
  requests[0].given_at = timestamp();
  EXPECT_EQ(evict_requested(requests), 1u);
  expect_awaited();
  engine_->check(stream_, tensor, kBytes, 2);
}

// A stream named by record_stream may queue a use later, without an op: one mark is not enough.
TEST_F(CudaAheadTest, RecordedUseMayBeQueuedLater) {
  start();
  char* tensor = allocate();
  char* other = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  engine_->write(stream_, other, kBytes, 2);
  engine_->device().record_stream(tensor, stream_);
  ASSERT_TRUE(engine_->evict(other));
  use_unannounced(tensor, 3);
  EXPECT_TRUE(engine_->evict(tensor));
  expect_awaited();
  engine_->check(stream_, tensor, kBytes, 3);
}

// An extent that was used since the request stays; the request for the other one stands.
TEST_F(CudaAheadTest, OutdatedRequestsAreNotCarriedOut) {
  start();
  char* used = allocate();
  char* idle = allocate();
  engine_->write(stream_, used, kBytes, 1);
  engine_->write(stream_, idle, kBytes, 2);
  std::vector<MoveRequest> requests = request(used);
  requests.push_back(request(idle)[0]);
  engine_->check(stream_, used, kBytes, 1);
  EXPECT_EQ(evict_requested(requests), 1u);
  EXPECT_EQ(engine_->state(used), ExtentState::kResident);
  EXPECT_EQ(engine_->state(idle), ExtentState::kCold);
}

// The op was queued before its tensor came, so the tensor may still arrive at the request's turn.
TEST_F(CudaAheadTest, WhatIsRequestedToLeaveArrivesFirst) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  ASSERT_TRUE(engine_->evict(tensor));
  engine_->driver().hold_copies();
  engine_->write(stream_, tensor, kBytes, 2);
  const std::vector<MoveRequest> requests = request(tensor);
  std::atomic<bool> has_begun{false};
  std::jthread evictor([&] {
    has_begun = true;
    EXPECT_EQ(evict_requested(requests), 1u);
  });
  ASSERT_TRUE(eventually([&] { return has_begun.load(); }));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(engine_->state(tensor), ExtentState::kArriving);
  engine_->driver().let_go();
  evictor.join();
  EXPECT_EQ(engine_->state(tensor), ExtentState::kCold);
  engine_->check(stream_, tensor, kBytes, 2);
}

/// A source of evictions that does what a test tells it.
class EvictionScript final : public EvictionSource {
 public:
  using Take = std::function<std::vector<MoveRequest>(uint64_t bytes_under_way)>;
  using Tell = std::function<void(const EvictionResult& part)>;
  EvictionScript(Take take, Tell tell) : take_(std::move(take)), tell_(std::move(tell)) {}
  std::vector<MoveRequest> take(uint64_t bytes_under_way) override {
    return take_(bytes_under_way);
  }
  void on_evicted(const EvictionResult& part) override { tell_(part); }

 private:
  const Take take_;
  const Tell tell_;
};

// Room is reported part by part; at that moment the next part is already under way.
TEST_F(CudaAheadTest, PartsLeaveOneBehindTheOther) {
  start_slow();
  std::vector<MoveRequest> requests;
  std::vector<char*> tensors;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    tensors.push_back(allocate());
    engine_->write(stream_, tensors.back(), kBytes, seed);
    requests.push_back(request(tensors.back())[0]);
  }
  ASSERT_LE(mover().bytes_at_once(), kBytes) << "a tensor is a part";
  const auto copies = [this] { return engine_->driver().calls("cuMemcpyDtoHAsync"); };
  const uint64_t copies_before = copies();
  uint64_t told = 0;
  EvictionScript source([&](uint64_t /*bytes_under_way*/) { return std::exchange(requests, {}); },
                        [&](const EvictionResult& part) {
                          EXPECT_EQ(part.count, 1u);
                          EXPECT_EQ(part.bytes, kBytes);
                          EXPECT_EQ(engine_->state(tensors[told++]), ExtentState::kCold);
                          if (told < tensors.size()) {
                            EXPECT_EQ(engine_->state(tensors[told]), ExtentState::kEvicting);
                            EXPECT_EQ(copies(), copies_before + told + 1)
                                << "the next one is queued already";
                          }
                        });
  mover().evict_requested(source);
  EXPECT_EQ(told, tensors.size());
  check_stamped(tensors);
}

// While the first copy is under way, the mover takes more requests and queues them behind it, up to
// four parts.
TEST_F(CudaAheadTest, WhatIsRequestedMeanwhileFollowsWithoutAGap) {
  start();
  ASSERT_GT(3 * mover().bytes_at_once(), 3 * kBytes) << "the number of parts is the limit";
  const std::vector<char*> tensors = allocate_stamped(6);
  engine_->driver().hold_copies();
  size_t requested = 0;
  size_t told = 0;
  std::vector<uint64_t> bytes_under_way;
  EvictionScript source(
      [&](uint64_t bytes) -> std::vector<MoveRequest> {
        bytes_under_way.push_back(bytes);
        // Twice the source has nothing, and is asked again while the first copy is under way.
        if (bytes_under_way.size() == 2 || bytes_under_way.size() == 3) return {};
        if (requested == 3) engine_->driver().let_go();
        if (requested == tensors.size()) return {};
        return request(tensors[requested++]);
      },
      [&](const EvictionResult& part) { told += part.count; });
  mover().evict_requested(source);
  EXPECT_EQ(told, tensors.size());
  bytes_under_way.resize(6);
  EXPECT_THAT(bytes_under_way, ElementsAre(0, kBytes, kBytes, kBytes, 2 * kBytes, 3 * kBytes));
  check_stamped(tensors);
}

// With large tensors, fewer parts keep the link busy while the oldest is finished.
TEST_F(CudaAheadTest, NoMoreIsQueuedThanKeepsTheLinkBusy) {
  engine_.emplace([](CudaEngineConfig& config) { config.budget_bytes = 256 * kMiB; });
  stream_ = engine_->make_stream();
  constexpr uint64_t kLargeBytes = 24 * kMiB;
  char* other = engine_->allocate(5 * kLargeBytes, stream_);
  engine_->write(stream_, other, 5 * kLargeBytes, 0);
  ASSERT_TRUE(engine_->evict(other));
  engine_->free(other);  // its host memory stays, and need not grow while copies are held
  const uint64_t full_parts = 3 * mover().bytes_at_once();
  ASSERT_TRUE(kLargeBytes < full_parts && full_parts <= 2 * kLargeBytes);
  const std::vector<char*> tensors = allocate_stamped(5, kLargeBytes);
  engine_->driver().hold_copies();
  size_t requested = 0;
  std::vector<uint64_t> bytes_under_way;
  EvictionScript source(
      [&](uint64_t bytes) -> std::vector<MoveRequest> {
        bytes_under_way.push_back(bytes);
        if (requested == 2) engine_->driver().let_go();
        if (requested == tensors.size()) return {};
        return request(tensors[requested++]);
      },
      [](const EvictionResult& /*part*/) {});
  mover().evict_requested(source);
  bytes_under_way.resize(5);
  EXPECT_THAT(bytes_under_way,
              ElementsAre(0, kLargeBytes, 2 * kLargeBytes, 2 * kLargeBytes, 2 * kLargeBytes));
}

// A fork need not wait for requests that follow each other without end.
TEST_F(CudaAheadTest, AForkWaitsForWhatIsUnderWayOnly) {
  start();
  const std::vector<char*> tensors = allocate_stamped(2);
  char* const first = tensors[0];
  char* const second = tensors[1];
  engine_->driver().hold_copies();
  request_and_await_copy(first);
  ForkLatch& latch = mover().fork_latch();
  std::jthread fork([&] { latch.close(); });
  EXPECT_TRUE(eventually([&] { return latch.is_closed(); }));
  (*engine_)->evictor().request(request(second));
  engine_->driver().let_go();
  fork.join();
  EXPECT_EQ(engine_->state(first), ExtentState::kCold);
  EXPECT_EQ(engine_->state(second), ExtentState::kResident);
  latch.reopen();
  EXPECT_TRUE(eventually([&] { return engine_->state(second) == ExtentState::kCold; }));
}

// An eviction under way that a use has called off is in the way of the next request for its tensor.
TEST_F(CudaAheadTest, WhatWasUsedMeanwhileLeavesWhenItIsRequestedAnew) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  engine_->driver().hold_copies();
  request_and_await_copy(tensor);
  engine_->write(stream_, tensor, kBytes, 2);
  (*engine_)->evictor().request(request(tensor));
  engine_->driver().let_go();
  EXPECT_TRUE(eventually([&] { return engine_->state(tensor) == ExtentState::kCold; }));
  engine_->check(stream_, tensor, kBytes, 2);
}

// The evictor takes what a plan requests while it carries out what was requested before.
TEST_F(CudaAheadTest, APlansRequestsFollowEachOtherWithoutAGap) {
  start();
  const std::vector<char*> tensors = allocate_stamped(2);
  engine_->driver().hold_copies();
  request_and_await_copy(tensors[0]);
  request_and_await_copy(tensors[1]);  // it is queued behind a copy that cannot end
  engine_->driver().let_go();
  for (char* tensor : tensors) {
    EXPECT_TRUE(eventually([&] { return engine_->state(tensor) == ExtentState::kCold; }));
  }
}

// Under pressure too, a thread that needs little room need not wait for evictions for another's
// sake.
TEST_F(CudaAheadTest, RoomOfAPassIsToldInParts) {
  start();
  constexpr uint64_t kLargeBytes = 16 * kMiB;  // a quarter of the budget
  for (uint64_t seed = 0; seed < 3; ++seed) {
    engine_->write(stream_, allocate(kLargeBytes), kLargeBytes, seed);
  }
  const auto copies = [this] { return engine_->driver().calls("cuMemcpyDtoHAsync"); };
  const uint64_t copies_before = copies();
  // Only the pieces of the first of two evictions may begin.
  engine_->driver().hold_copies(kLargeBytes / CopyPause::kPieceBytes);
  char* much = nullptr;
  char* little = nullptr;
  std::jthread first([&] { much = engine_->allocate(40 * kMiB, stream_); });
  EXPECT_TRUE(eventually([&] { return copies() > copies_before; }));
  std::atomic<bool> has_little = false;
  std::jthread second([&] {
    little = engine_->allocate(24 * kMiB, stream_);
    has_little = true;
  });
  EXPECT_TRUE(eventually([&] { return has_little.load(); })) << "one of two is copied";
  engine_->driver().let_go();
  first.join();
  second.join();
  allocated_.insert(allocated_.end(), {much, little});
  EXPECT_EQ(engine_->stats().over_budget_events, 0u);
}

// A thread waits for others' fetches while its own queued work still occupies the device.
TEST_F(CudaAheadTest, AThreadAheadOfTheDeviceMayWait) {
  start();
  char* tensor = allocate();
  const StreamSet streams = engine_->device().streams().set_of(stream_);
  mover().wait_while_ahead(streams, [] { return true; });  // nothing is queued
  engine_->driver().hold(stream_);
  engine_->write(stream_, tensor, kBytes, 1);
  int asked = 0;
  mover().wait_while_ahead(streams, [&asked] { return ++asked < 3; });
  EXPECT_EQ(asked, 3) << "it is worth it no longer";
  asked = 0;
  mover().wait_while_ahead(streams, [&] {
    if (++asked == 3) engine_->driver().let_go();
    return true;
  });
  EXPECT_GE(asked, 3);
  EXPECT_TRUE(has_stamp(tensor, kBytes, 1));
}

// An op that has the extent pinned lets the request for it go first, although its own use is newer.
TEST_F(CudaAheadTest, FetchesThatAnOpAwaitsAreCarriedOut) {
  start();
  char* tensor = allocate();
  engine_->write(stream_, tensor, kBytes, 1);
  ASSERT_TRUE(engine_->evict(tensor));
  Extent* extent = engine_->extent(tensor);
  const std::vector<MoveRequest> requests = {{extent, extent->id.load(), kBytes, timestamp()}};
  extent->last_use_at.store(timestamp() + 1);
  EXPECT_EQ(prefetch(mover(), requests), 1u);
  EXPECT_EQ(extent->state(), ExtentState::kCold) << "used since, and given up again";
  extent->pin();
  EXPECT_EQ(prefetch(mover(), requests), 1u);
  EXPECT_NE(extent->state(), ExtentState::kCold);
  extent->unpin();
  engine_->check(stream_, tensor, kBytes, 1);
}

// The next fetch is queued even if the first takes longer than the time that may be in flight.
TEST_F(CudaAheadTest, OneFetchIsQueuedBehindAnother) {
  start_slow();
  constexpr uint64_t kLargeBytes = 16 * kMiB;  // a quarter of a second
  const std::vector<char*> tensors = allocate_stamped(3, kLargeBytes);
  for (char* tensor : tensors) ASSERT_TRUE(engine_->evict(tensor));
  engine_->driver().hold_copies();
  for (char* tensor : {tensors[0], tensors[1]}) EXPECT_EQ(engine_->prefetch({tensor}), 1u);
  EXPECT_EQ(engine_->state(tensors[0]), ExtentState::kArriving);
  EXPECT_EQ(engine_->state(tensors[1]), ExtentState::kArriving);
  std::jthread third([&] {
    EXPECT_EQ(engine_->prefetch({tensors[2]}), 1u);
    EXPECT_EQ(engine_->state(tensors[0]), ExtentState::kResident) << "a third one waits for it";
  });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(engine_->state(tensors[2]), ExtentState::kCold);
  engine_->driver().let_go();
  third.join();
  check_stamped(tensors, kLargeBytes);
}

// What queued ops wait for has the link to itself, but for the last flight.
TEST_F(CudaAheadTest, WhatOpsWaitForGoesFirst) {
  start_slow();
  const std::vector<char*> tensors = allocate_stamped(4);
  for (char* tensor : tensors) ASSERT_TRUE(engine_->evict(tensor));
  engine_->driver().hold_copies(1);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    engine_->op(stream_, {{tensors[seed], kBytes, seed, false}});
  }
  std::jthread ahead([&] {
    EXPECT_EQ(engine_->prefetch({tensors[3]}), 1u);
    EXPECT_EQ(engine_->state(tensors[1]), ExtentState::kResident) << "it waits for the second, too";
  });
  EXPECT_TRUE(eventually([&] { return engine_->state(tensors[0]) == ExtentState::kResident; }));
  engine_->driver().let_go();
  ahead.join();
  check_stamped(tensors);
}

// The first extent of an op travels before there is room for all the others.
TEST_F(CudaAheadTest, WhatFindsRoomTravelsWhileRoomIsMadeForTheRest) {
  start();
  constexpr uint64_t kLargeBytes = 16 * kMiB;  // a quarter of the budget
  std::vector<char*> tensors = allocate_stamped(2, kLargeBytes);
  for (char* tensor : tensors) ASSERT_TRUE(engine_->evict(tensor));
  for (uint64_t seed = 2; seed < 5; ++seed) {
    tensors.push_back(allocate(kLargeBytes));
    engine_->write(stream_, tensors.back(), kLargeBytes, seed);
  }
  const auto fetched = [this] { return engine_->driver().calls("cuMemcpyHtoDAsync"); };
  const uint64_t fetched_before = fetched();
  engine_->driver().hold_copies();  // also the copies that make room
  std::jthread op([&] {
    engine_->op(stream_,
                {{tensors[0], kLargeBytes, 0, false}, {tensors[1], kLargeBytes, 1, false}});
  });
  EXPECT_TRUE(eventually([&] { return fetched() == fetched_before + 1; }));
  EXPECT_EQ(engine_->state(tensors[1]), ExtentState::kFetching) << "it waits for room";
  engine_->driver().let_go();
  op.join();
  engine_->wait_until_idle();
  EXPECT_EQ(engine_->stats().early_fetches + engine_->stats().late_fetches, 2u);
  EXPECT_EQ(engine_->stats().over_budget_events, 0u);
  check_stamped(tensors, kLargeBytes);
}

// Fetches of one op arrive one by one, the first before the last.
TEST_F(CudaAheadTest, SmallTensorsWaitForNoLargeOne) {
  start();
  constexpr uint64_t kLargeBytes = 32 * kMiB;
  char* small = allocate();
  char* large = allocate(kLargeBytes);
  engine_->write(stream_, small, kBytes, 1);
  engine_->write(stream_, large, kLargeBytes, 2);
  ASSERT_TRUE(engine_->evict(small));
  ASSERT_TRUE(engine_->evict(large));
  engine_->driver().hold_copies(1);
  EXPECT_EQ(engine_->prefetch({small, large}), 2u);
  EXPECT_TRUE(eventually([&] {
    mover().settle(false);
    return engine_->state(small) == ExtentState::kResident;
  }));
  EXPECT_EQ(engine_->state(large), ExtentState::kArriving);
  engine_->driver().let_go();
  engine_->check(stream_, large, kLargeBytes, 2);
}

// The time that the driver takes to map memory is not computing, whichever op needs the memory.
TEST_F(CudaAheadTest, MappingMemoryForAnOpIsAWaitOnceTensorsLeave) {
  engine_.emplace([](CudaEngineConfig& config) { config.arm_at = 0.5; });
  stream_ = engine_->make_stream();
  engine_->driver().set_latency("cuMemSetAccess", milliseconds(20));
  allocate(16 * kMiB);
  allocate(20 * kMiB);
  EXPECT_EQ(engine_->stats().thread_wait_ns.load(), 0u) << "nothing leaves yet";
  ASSERT_TRUE((*engine_)->evictor().is_armed());
  allocate(8 * kMiB);
  EXPECT_GE(engine_->stats().thread_wait_ns.load(), 20'000'000u);
}

struct ToldWait final : OpWait {
  void begin_part() override { parts.emplace_back(); }
  void add(const LateFetches& late) override {
    parts.back().count += late.count;
    parts.back().bytes += late.bytes;
  }
  std::vector<LateFetches> parts;
};

// Each flight is a part of its own, so that the device can tell which of them it waited for.
TEST_F(CudaAheadTest, EachFlightOfAFetchIsAPartOfTheWait) {
  start();
  std::vector<char*> tensors;
  std::vector<Extent*> extents;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    tensors.push_back(allocate());
    engine_->write(stream_, tensors.back(), kBytes, seed);
    extents.push_back(engine_->extent(tensors.back()));
    const bool stays = seed == 1;
    ASSERT_TRUE(stays || engine_->evict(tensors.back()));
    extents.back()->pin();
  }
  engine_->driver().hold_copies();
  EXPECT_EQ(engine_->prefetch({tensors[0]}), 1u);
  EXPECT_EQ(engine_->prefetch({tensors[2]}), 1u);
  const StreamSet streams = engine_->device().streams().set_of(stream_);
  ToldWait wait;
  mover().fetch(extents, streams, &wait);  // 3 and 4 come together
  engine_->driver().let_go();
  engine_->wait_until_idle();
  std::vector<uint64_t> counts;
  for (const LateFetches& part : wait.parts) {
    counts.push_back(part.count);
    EXPECT_EQ(part.bytes, part.count * kBytes);
  }
  EXPECT_EQ(counts, (std::vector<uint64_t>{1, 1, 2}));
  for (Extent* extent : extents) extent->unpin();
}

}  // namespace
}  // namespace tencache
