// SPDX-License-Identifier: Apache-2.0
//
// Which streams a thread waits for when it needs room on the GPU: none but its own as long as
// something can leave, and one after another when nothing can. A stream of others may need this
// very thread to go on, as where two ranks send to each other.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "engine/engine.h"
#include "engine/gate/gate.h"
#include "engine/plan/prefetcher.h"
#include "support/cuda/test_cuda_engine.h"
#include "support/eventually.h"

namespace tencache {
namespace {

constexpr uint64_t kHalf = TestCudaEngine::kBudgetBytes / 2;
constexpr uint64_t kQuarter = TestCudaEngine::kBudgetBytes / 4;

class RoomAndStreamsTest : public ::testing::Test {
 protected:
  ~RoomAndStreamsTest() override {
    engine_->driver().let_go();
    for (char* address : allocated_) engine_->free(address);
    EXPECT_EQ(engine_->check_books(), "");
  }
  void start(const TestCudaEngine::Adjust& adjust = {}) {
    engine_.emplace(adjust);
    own_ = engine_->make_stream();
    held_ = engine_->make_stream();
  }
  char* allocate(uint64_t bytes, CUstream stream) {
    allocated_.push_back(engine_->allocate(bytes, stream));
    return allocated_.back();
  }
  // Makes a tensor that is written, and idle afterwards: it may leave.
  char* allocate_idle(uint64_t bytes) {
    char* tensor = allocate(bytes, own_);
    engine_->write(own_, tensor, bytes, 1);
    engine_->wait_until_idle();
    return tensor;
  }
  void free(char* address) {
    std::erase(allocated_, address);
    engine_->free(address);
  }
  // Frees the tensor while this stream, which stands still from now on, still uses it.
  void free_in_use_by(CUstream stream, char* address) {
    engine_->driver().hold(stream);
    free(address);
  }
  // Runs `act`. The held streams go on when `act` is over, or has waited for long.
  template <typename Act>
  void without_held_streams(const Act& act) {
    std::atomic<bool> is_over = false;
    std::jthread let_go([&] {
      EXPECT_TRUE(eventually([&] { return is_over.load(); })) << "it waits for a held stream";
      engine_->driver().let_go();
    });
    act();
    is_over = true;
  }

  std::optional<TestCudaEngine> engine_;
  CUstream own_ = nullptr;
  CUstream held_ = nullptr;
  std::vector<char*> allocated_;
};

TEST_F(RoomAndStreamsTest, AllocationsLeaveAloneWhatOtherStreamsUse) {
  start();
  allocate_idle(kHalf);
  free_in_use_by(held_, allocate(kHalf, held_));
  without_held_streams([&] {
    allocate(kQuarter, own_);
    EXPECT_EQ((*engine_)->heap().cached_bytes(), kHalf) << "the other stream still uses it";
  });
  EXPECT_EQ(engine_->stats().evicted_bytes, kHalf);
}

TEST_F(RoomAndStreamsTest, AllocationsLeaveAloneTheSmallBlocksOfOtherStreams) {
  start();
  char* small = allocate(kMiB / 2, held_);
  allocate_idle(kHalf);
  allocate_idle(kQuarter);
  free_in_use_by(held_, small);
  without_held_streams([&] {
    allocate(kQuarter, own_);
    EXPECT_EQ((*engine_)->heap().small_bytes(), 2 * kMiB) << "the other stream still uses it";
  });
  EXPECT_GT(engine_->stats().evicted_bytes, 0u);
}

TEST_F(RoomAndStreamsTest, SmallBlocksThatAreIdleGoWithoutAWait) {
  start();
  char* small = allocate(kMiB / 2, held_);
  allocate_idle(kHalf);
  free_in_use_by(held_, small);
  EXPECT_EQ((*engine_)->heap().drop_cached_of(1, kNoStreams), 0u) << "this marks its end";
  engine_->wait_until_idle();
  engine_->driver().hold(own_);
  engine_->driver().hold(held_);
  without_held_streams([&] {
    allocate(kHalf, own_);
    EXPECT_EQ((*engine_)->heap().small_bytes(), 0u);
  });
}

TEST_F(RoomAndStreamsTest, FetchesLeaveAloneWhatOtherStreamsUse) {
  start();
  char* cold = allocate_idle(kQuarter);
  ASSERT_TRUE(engine_->evict(cold));
  allocate_idle(kHalf);
  free_in_use_by(held_, allocate(kHalf, held_));
  without_held_streams([&] {
    engine_->check(own_, cold, kQuarter, 1);
    EXPECT_EQ((*engine_)->heap().cached_bytes(), kHalf) << "the other stream still uses it";
  });
  EXPECT_EQ(engine_->stats().over_budget_events, 0u);
}

// A thread would rather have freed memory than hold more, but not at any price.
TEST_F(RoomAndStreamsTest, MoreIsHeldBeforeAnotherStreamIsWaitedForForLong) {
  start();
  allocate(kQuarter, own_);
  free_in_use_by(held_, allocate(kQuarter, held_));
  without_held_streams([&] { allocate(kQuarter / 2, own_); });
  EXPECT_GE(engine_->device().view().frames().all.bytes.peak, 2 * kQuarter + kQuarter / 2);
}

TEST_F(RoomAndStreamsTest, AStreamThatStandsStillIsWaitedForOnce) {
  start();
  allocate(kQuarter, own_);
  free_in_use_by(held_, allocate(kQuarter, held_));
  const auto queries_of = [this](uint64_t bytes) {
    const uint64_t before = engine_->driver().calls("cuEventQuery");
    allocate(bytes, own_);
    return engine_->driver().calls("cuEventQuery") - before;
  };
  without_held_streams([&] {
    const uint64_t queries = queries_of(kQuarter / 2);
    EXPECT_LT(queries_of(kQuarter / 4), queries / 2);
  });
}

// Another thread waits for its own stream, which stands still.
TEST_F(RoomAndStreamsTest, AThreadThatWaitsHoldsUpNoOther) {
  start();
  allocate(kQuarter, own_);
  free_in_use_by(held_, allocate(kQuarter, held_));
  without_held_streams([&] {
    std::atomic<bool> is_over = false;
    char* allocated = nullptr;
    std::jthread other([&] {
      allocated = engine_->allocate(kQuarter / 2, held_);
      is_over = true;
    });
    EXPECT_TRUE(eventually([&] { return engine_->driver().calls("cuEventSynchronize") > 0; }));
    allocate(kQuarter / 4, own_);
    EXPECT_FALSE(is_over.load());
    engine_->driver().let_go();
    other.join();
    allocated_.push_back(allocated);
  });
}

// An op holds what it has allocated until it ends.
TEST_F(RoomAndStreamsTest, NoThreadWaitsForItself) {
  start();
  (*engine_)->evictor().arm();
  (*engine_)->open_op(0, {}, own_);
  engine_->driver().hold(own_);
  free(allocate(kQuarter, own_));
  const uint64_t queries = engine_->driver().calls("cuEventQuery");
  allocate(kQuarter / 2, own_);
  EXPECT_LT(engine_->driver().calls("cuEventQuery") - queries, 100u);
  (*engine_)->gate().close();
}

// Inside an op that names its stream, memory is allocated by one that names none, such as
// aten::empty.
TEST_F(RoomAndStreamsTest, RequestsGoFirstWhileTheDeviceIsBusy) {
  start();
  char* cold = allocate_idle(kQuarter);
  ASSERT_TRUE(engine_->evict(cold));
  Prefetcher prefetcher((*engine_)->heap(), *(*engine_)->mover());  // not started: requests stay
  Extent* extent = engine_->extent(cold);
  prefetcher.request(std::vector<MoveRequest>{{extent, extent->id.load(), kQuarter, timestamp()}});
  EXPECT_TRUE(prefetcher.has_requests_for(std::vector<Extent*>{extent}));
  Recorder recorder;
  Stats stats;
  Gate gate({.heap = &(*engine_)->heap(),
             .mover = (*engine_)->mover(),
             .recorder = &recorder,
             .stats = &stats,
             .prefetcher = &prefetcher});
  const StreamSet own = engine_->device().streams().set_of(own_);
  char* busy = allocate(2 * kMiB, own_);
  gate.open(0, {}, own);
  gate.open(1, {}, kNoStreams);
  engine_->driver().hold(own_);
  engine_->write(own_, busy, 2 * kMiB, 2);
  without_held_streams([&] { gate.let_fetches_go_first(); });  // as in a fetch, it does not wait
  engine_->driver().hold(own_);
  engine_->write(own_, busy, 2 * kMiB, 1);
  gate.begin_wait_for_room(own);
  const uint64_t queries = engine_->driver().calls("cuEventQuery");
  std::jthread let_go([&] {
    EXPECT_TRUE(eventually([&] { return engine_->driver().calls("cuEventQuery") > queries + 3; }));
    engine_->driver().let_go();
  });
  gate.let_fetches_go_first();
  EXPECT_TRUE(has_stamp(busy, 2 * kMiB, 1)) << "the device was busy";
  gate.end_wait_for_room();
  gate.close();
  gate.close();
}

TEST_F(RoomAndStreamsTest, OnlyAsMuchIsWaitedForAsIsLacking) {
  start([](CudaEngineConfig& config) { config.heap.strict = true; });
  CUstream done = engine_->make_stream();
  char* first = allocate(2 * kMiB, done);
  char* second = allocate(kHalf, held_);
  allocate(kQuarter, own_);
  engine_->write(done, first, 2 * kMiB, 1, std::chrono::milliseconds(20));
  free(first);
  free_in_use_by(held_, second);
  without_held_streams([&] { allocate(kQuarter, own_); });
}

TEST_F(RoomAndStreamsTest, WhereNothingCanLeaveOneStreamIsWaitedFor) {
  start([](CudaEngineConfig& config) { config.heap.strict = true; });
  CUstream done = engine_->make_stream();
  char* first = allocate(kHalf, own_);
  char* second = allocate(kHalf, own_);
  engine_->device().record_stream(first, done);
  engine_->device().record_stream(second, held_);
  free(first);
  free_in_use_by(held_, second);
  without_held_streams([&] { allocate(kQuarter, own_); });
}

}  // namespace
}  // namespace tencache
