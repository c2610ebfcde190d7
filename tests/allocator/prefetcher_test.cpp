// SPDX-License-Identifier: Apache-2.0
//
// Fetches ahead of use: they take only free room, and pointless requests are dropped. The worker
// does this in order, waits for room, and forgets when told to.
#include "engine/plan/prefetcher.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "support/eventually.h"
#include "support/faulty_channel.h"
#include "support/listed_requests.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 256 * kKiB;

/// Whether the thread of this process waits.
bool is_asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string number;
  std::string name;
  std::string state;
  file >> number >> name >> state;
  return state == "S";
}

class PrefetcherTest : public ::testing::Test {
 protected:
  PrefetcherTest()
      : engine_([this](CpuEngineConfig& config) {
          config.budget_bytes = 8 * kBytes;
          config.disk->channel_factory = faulty_channel_factory(faults_);
        }) {
    engine_->evictor().arm();
  }

  /// Makes the call while the first piece is read.
  void while_reading(std::function<void()> call) {
    Fault fault;
    fault.direction = IoDirection::kRead;
    fault.count = 1;
    fault.kind = FaultKind::kCall;
    fault.call = std::move(call);
    faults_->add(fault);
  }

  /// A cold extent that holds the pattern of `seed`.
  char* cold(uint64_t seed) {
    char* address = engine_.allocate(kBytes);
    fill_pattern(address, kBytes, seed);
    engine_.use({address}, AccessMode::kWrite);
    EXPECT_TRUE(engine_.evict(address));
    return address;
  }
  MoveRequest request(const void* address) const {
    Extent* extent = engine_.extent(address);
    TENCACHE_CHECK(extent != nullptr, "%p", address);
    return {extent, extent->id, extent->bytes, timestamp()};
  }

  std::shared_ptr<FaultPlan> faults_ = std::make_shared<FaultPlan>();
  TestEngine engine_;
};

TEST_F(PrefetcherTest, TakesOnlyTheRoomThereIs) {
  const char* first = cold(1);
  const char* second = cold(2);
  char* filler = engine_.allocate(7 * kBytes);
  const std::vector<MoveRequest> requests = {request(first), request(second)};
  uint64_t lacking_bytes = 0;
  EXPECT_EQ(prefetch(*engine_->mover(), requests, &lacking_bytes), 1u);
  EXPECT_EQ(lacking_bytes, kBytes);
  EXPECT_TRUE(engine_.is_resident(first));
  EXPECT_TRUE(engine_.is_cold(second));
  EXPECT_LE(engine_->budget().used(), engine_->budget().limit());
  engine_.free(filler);
  EXPECT_EQ(engine_.check_books(), "");
}

TEST_F(PrefetcherTest, DropsRequestsThatHaveBecomePointless) {
  char* freed = cold(1);
  char* resident = cold(2);
  const std::vector<MoveRequest> requests = {request(freed), request(resident)};
  engine_.free(freed);
  engine_.use({resident});
  uint64_t lacking_bytes = 0;
  EXPECT_EQ(prefetch(*engine_->mover(), requests, &lacking_bytes), 2u);
  EXPECT_EQ(lacking_bytes, 0u);
  EXPECT_EQ(engine_.read(engine_.stats().fetched_bytes), kBytes) << "by the use alone";
}

TEST_F(PrefetcherTest, WhatIsWantedBackDoesNotLeave) {
  char* address = engine_.allocate(kBytes);
  engine_.use({address}, AccessMode::kWrite);
  const std::vector<MoveRequest> eviction = {request(address)};
  Prefetcher prefetcher(engine_->heap(), *engine_->mover());
  const std::vector<MoveRequest> fetch = {request(address)};
  prefetcher.request(fetch);
  EXPECT_TRUE(eviction[0].is_outdated());
  engine_->evictor().request(eviction);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(engine_.is_resident(address));
  const std::vector<MoveRequest> later = {request(address)};
  engine_->evictor().request(later);
  EXPECT_TRUE(eventually([&] { return engine_.is_cold(address); }));
}

TEST_F(PrefetcherTest, WorksThroughItsRequests) {
  std::vector<char*> addresses;
  std::vector<MoveRequest> requests;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    addresses.push_back(cold(seed));
    requests.push_back(request(addresses.back()));
  }
  Prefetcher prefetcher(engine_->heap(), *engine_->mover());
  prefetcher.start();
  prefetcher.request(requests);
  for (char* address : addresses) {
    EXPECT_TRUE(eventually([&] { return engine_.is_resident(address); }));
  }
  for (uint64_t seed = 0; seed < 6; ++seed) {
    EXPECT_TRUE(has_pattern(addresses[seed], kBytes, seed)) << seed;
  }
}

// What comes at once is sorted by need, so the first are worth more than the last.
TEST_F(PrefetcherTest, OfTooManyRequestsTheFirstAreKept) {
  const char* first = cold(1);
  char* freed = cold(2);
  std::vector<MoveRequest> requests = {request(first)};
  requests.resize(100'000, request(freed));
  engine_.free(freed);
  Prefetcher prefetcher(engine_->heap(), *engine_->mover());
  prefetcher.start();
  prefetcher.request(requests);
  EXPECT_TRUE(eventually([&] { return engine_.is_resident(first); }));
}

// Requests that come one after the other come in the order of their need, too.
TEST_F(PrefetcherTest, OfTooManyInTurnTheLastAreDropped) {
  const char* first = cold(1);
  const char* second = cold(2);
  const char* last = cold(3);
  Mover& mover = *engine_->mover();
  Prefetcher prefetcher(engine_->heap(), mover);
  prefetcher.request(std::vector<MoveRequest>{request(first)});
  for (int turn = 0; turn < 10; ++turn) {
    prefetcher.request(std::vector<MoveRequest>(10'000, request(second)));
  }
  prefetcher.request(std::vector<MoveRequest>{request(last)});
  prefetcher.start();
  EXPECT_TRUE(eventually([&] { return !prefetcher.has_requests(); }));
  EXPECT_TRUE(engine_.is_resident(first));
  EXPECT_TRUE(engine_.is_resident(second));
  EXPECT_TRUE(engine_.is_cold(last));
}

// If the second fetch waited, the disk would run dry in between.
TEST_F(PrefetcherTest, WhatIsRequestedMeanwhileJoinsTheTransfer) {
  const char* first = cold(1);
  const char* second = cold(2);
  Prefetcher prefetcher(engine_->heap(), *engine_->mover());
  const std::vector<MoveRequest> later = {request(second)};
  while_reading([&] { prefetcher.request(later); });
  prefetcher.start();
  prefetcher.request(std::vector<MoveRequest>{request(first)});
  EXPECT_TRUE(eventually([&] { return engine_.is_resident(second); }));
  EXPECT_TRUE(engine_.is_resident(first));
  EXPECT_EQ(faults_->transfers(IoDirection::kRead), 1u);
  EXPECT_TRUE(has_pattern(first, kBytes, 1));
  EXPECT_TRUE(has_pattern(second, kBytes, 2));
  EXPECT_EQ(engine_.check_books(), "");
}

TEST_F(PrefetcherTest, WhatIsForgottenDoesNotJoinIt) {
  const char* first = cold(1);
  const char* second = cold(2);
  Prefetcher prefetcher(engine_->heap(), *engine_->mover());
  while_reading([&] { prefetcher.forget(); });
  const std::vector<MoveRequest> requests = {request(first), request(second)};
  prefetcher.request(requests);
  prefetcher.start();
  EXPECT_TRUE(eventually([&] { return engine_.is_resident(first); }));
  EXPECT_TRUE(eventually([&] { return !prefetcher.has_requests(); }));
  EXPECT_TRUE(engine_.is_cold(second));
}

TEST_F(PrefetcherTest, NothingJoinsItWhileAnOpWaits) {
  const char* first = cold(1);
  const char* second = cold(2);
  Mover& mover = *engine_->mover();
  Prefetcher prefetcher(engine_->heap(), mover);
  while_reading([&] { mover.ledger().begin_demand(); });
  const std::vector<MoveRequest> requests = {request(first), request(second)};
  prefetcher.request(requests);
  prefetcher.start();
  EXPECT_TRUE(eventually([&] { return engine_.is_resident(first); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(engine_.is_cold(second));
  mover.ledger().end_demand();
  EXPECT_TRUE(eventually([&] { return engine_.is_resident(second); }));
  EXPECT_EQ(faults_->transfers(IoDirection::kRead), 2u);
}

// An op that waits for another's fetch reads nothing itself.
TEST_F(PrefetcherTest, AnOpThatWaitsForAnothersFetchIsNoDemand) {
  const char* first = cold(1);
  Mover& mover = *engine_->mover();
  std::jthread op;
  while_reading([&] {
    std::atomic<pid_t> thread{0};
    op = std::jthread([&] {
      thread = gettid();
      engine_.use({first});
    });
    EXPECT_TRUE(eventually([&] {
      const bool has_begun = Extent::pins_of(engine_.extent(first)->load()) > 0;
      return has_begun && is_asleep(thread) && !mover.ledger().is_demanded();
    }));
  });
  EXPECT_EQ(prefetch(mover, std::vector<MoveRequest>{request(first)}), 1u);
  op.join();
  EXPECT_TRUE(has_pattern(first, kBytes, 1));
}

// A fork waits until nothing moves any more.
TEST_F(PrefetcherTest, NothingJoinsItOnceTheGateIsClosed) {
  const char* first = cold(1);
  const char* second = cold(2);
  ForkLatch& gate = engine_->mover()->fork_latch();
  std::jthread closer;
  while_reading([&] {
    closer = std::jthread([&] { gate.close(); });
    EXPECT_TRUE(eventually([&] { return gate.is_closed(); }));
  });
  const std::vector<MoveRequest> requests = {request(first), request(second)};
  ListedRequests listed(requests);
  EXPECT_EQ(engine_->mover()->prefetch(listed), 0u);
  closer.join();
  EXPECT_TRUE(engine_.is_resident(first));
  EXPECT_TRUE(engine_.is_cold(second));
  EXPECT_EQ(listed.left(), 1u);
  gate.reopen();
  EXPECT_EQ(engine_.check_books(), "");
}

TEST_F(PrefetcherTest, WhatJoinedAndCannotBeReadStaysCold) {
  const char* first = cold(1);
  const char* second = cold(2);
  const char* third = cold(3);
  Fault fault;
  fault.direction = IoDirection::kRead;
  fault.first = 2;
  fault.count = 3;  // the number of times that a read is tried
  faults_->add(fault);
  const std::vector<MoveRequest> requests = {request(first), request(second), request(third)};
  ListedRequests listed(requests);
  EXPECT_EQ(engine_->mover()->prefetch(listed), 0u);
  EXPECT_TRUE(engine_.is_resident(first));
  EXPECT_TRUE(engine_.is_cold(second));
  EXPECT_EQ(engine_->mover()->ledger().bytes_ahead.load(), 0u);
  EXPECT_EQ(engine_.check_books(), "");
  engine_.use({second, third});
  EXPECT_TRUE(has_pattern(second, kBytes, 2));
  EXPECT_TRUE(has_pattern(third, kBytes, 3));
}

TEST_F(PrefetcherTest, WaitsForRoomAndTakesCachedExtentsFirst) {
  const char* wanted = cold(1);
  char* filler = engine_.allocate(8 * kBytes);
  Prefetcher prefetcher(engine_->heap(), *engine_->mover());
  prefetcher.start();
  const std::vector<MoveRequest> requests = {request(wanted)};
  prefetcher.request(requests);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(engine_.is_cold(wanted)) << "there is no room";
  engine_.free(filler);
  EXPECT_TRUE(eventually([&] { return engine_.is_resident(wanted); }));
}

TEST_F(PrefetcherTest, CachedExtentsThatDoNotSufficeStayCached) {
  const char* wanted = cold(1);
  char* filler = engine_.allocate(7 * kBytes + kBytes / 4);
  engine_.free(engine_.allocate(kBytes / 4));
  ASSERT_EQ(engine_->heap().cached_bytes(), kBytes / 4);
  Prefetcher prefetcher(engine_->heap(), *engine_->mover());
  prefetcher.start();
  prefetcher.request(std::vector<MoveRequest>{request(wanted)});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(engine_->heap().cached_bytes(), kBytes / 4);
  engine_.free(filler);
  EXPECT_TRUE(eventually([&] { return engine_.is_resident(wanted); }));
}

TEST_F(PrefetcherTest, GuessesLeaveTheHeadroomFreeAndHoldUpNoRequest) {
  const char* guessed = cold(1);
  const char* planned = cold(2);
  char* filler = engine_.allocate(7 * kBytes);
  Prefetcher prefetcher(engine_->heap(), *engine_->mover());
  prefetcher.guess({request(guessed)});
  prefetcher.start();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(engine_.is_cold(guessed)) << "without it there would be no headroom";
  prefetcher.request(std::vector<MoveRequest>{request(planned)});
  EXPECT_TRUE(eventually([&] { return engine_.is_resident(planned); }));
  EXPECT_TRUE(engine_.is_cold(guessed));
  EXPECT_EQ(prefetcher.guessed_bytes(), kBytes);
  EXPECT_FALSE(prefetcher.has_requests());
  engine_.free(filler);
  EXPECT_TRUE(eventually([&] { return engine_.is_resident(guessed); }));
  EXPECT_EQ(prefetcher.guessed_bytes(), 0u);
}

TEST_F(PrefetcherTest, NewGuessesTakeThePlaceOfOldOnes) {
  const char* first = cold(1);
  const char* second = cold(2);
  Prefetcher prefetcher(engine_->heap(), *engine_->mover());
  while_reading([&] { prefetcher.guess({}); });
  prefetcher.guess({request(second)});
  EXPECT_EQ(prefetcher.guessed_bytes(), kBytes);
  prefetcher.guess({request(first), request(second)});
  EXPECT_EQ(prefetcher.guessed_bytes(), 2 * kBytes);
  prefetcher.start();
  EXPECT_TRUE(eventually([&] { return engine_.is_resident(first); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(engine_.is_cold(second));
}

TEST_F(PrefetcherTest, ForgetsWhatItWasTold) {
  const char* wanted = cold(1);
  char* filler = engine_.allocate(8 * kBytes);
  Prefetcher prefetcher(engine_->heap(), *engine_->mover());
  prefetcher.start();
  const std::vector<MoveRequest> requests = {request(wanted)};
  prefetcher.request(requests);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  prefetcher.forget();
  engine_.free(filler);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(engine_.is_cold(wanted));
}

}  // namespace
}  // namespace tencache
