// SPDX-License-Identifier: Apache-2.0
//
// Fetches ahead of use: room is taken only where there is some, orders that have become pointless
// are dropped, and the worker does all of it in order, waits for room, and forgets when told to.
#include "engine/prefetcher.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "support/eventually.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 256 * kKiB;

class PrefetcherTest : public ::testing::Test {
 protected:
  PrefetcherTest() : engine_([](CpuEngineConfig& config) { config.budget_bytes = 8 * kBytes; }) {
    engine_->migrator().on_attention();
  }

  /// A cold extent that holds the pattern of `seed`.
  char* cold(uint64_t seed) {
    char* address = engine_.allocate(kBytes);
    fill_pattern(address, kBytes, seed);
    engine_.use({address}, AccessMode::kWrite);
    EXPECT_TRUE(engine_.evict(address));
    return address;
  }
  Order order(const void* address) const {
    Extent* extent = engine_.extent(address);
    TENCACHE_CHECK(extent != nullptr, "%p", address);
    return {extent, extent->id, extent->bytes, ticks()};
  }

  TestEngine engine_;
};

TEST_F(PrefetcherTest, TakesOnlyTheRoomThereIs) {
  const char* first = cold(1);
  const char* second = cold(2);
  char* filler = engine_.allocate(7 * kBytes);
  const std::vector<Order> orders = {order(first), order(second)};
  uint64_t lacking_bytes = 0;
  EXPECT_EQ(engine_->migrations()->prefetch(orders, &lacking_bytes), 1u);
  EXPECT_EQ(lacking_bytes, kBytes);
  EXPECT_TRUE(engine_.is_resident(first));
  EXPECT_TRUE(engine_.is_cold(second));
  EXPECT_LE(engine_->budget().used(), engine_->budget().limit());
  engine_.free(filler);
  EXPECT_EQ(engine_.check_books(), "");
}

TEST_F(PrefetcherTest, DropsOrdersThatHaveBecomePointless) {
  char* freed = cold(1);
  char* resident = cold(2);
  const std::vector<Order> orders = {order(freed), order(resident)};
  engine_.free(freed);
  engine_.use({resident});
  uint64_t lacking_bytes = 0;
  EXPECT_EQ(engine_->migrations()->prefetch(orders, &lacking_bytes), 2u);
  EXPECT_EQ(lacking_bytes, 0u);
  EXPECT_EQ(engine_.read(engine_.stats().fetched_bytes), kBytes) << "by the use alone";
}

TEST_F(PrefetcherTest, WhatIsWantedBackDoesNotLeave) {
  char* address = engine_.allocate(kBytes);
  engine_.use({address}, AccessMode::kWrite);
  const std::vector<Order> eviction = {order(address)};
  Prefetcher prefetcher(engine_->heap(), *engine_->migrations());
  const std::vector<Order> fetch = {order(address)};
  prefetcher.order(fetch);
  EXPECT_TRUE(eviction[0].is_outdated());
  engine_->migrator().order(eviction);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(engine_.is_resident(address));
  const std::vector<Order> later = {order(address)};
  engine_->migrator().order(later);
  EXPECT_TRUE(eventually([&] { return engine_.is_cold(address); }));
}

TEST_F(PrefetcherTest, WorksThroughItsOrders) {
  std::vector<char*> addresses;
  std::vector<Order> orders;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    addresses.push_back(cold(seed));
    orders.push_back(order(addresses.back()));
  }
  Prefetcher prefetcher(engine_->heap(), *engine_->migrations());
  prefetcher.start();
  prefetcher.order(orders);
  for (char* address : addresses) {
    EXPECT_TRUE(eventually([&] { return engine_.is_resident(address); }));
  }
  for (uint64_t seed = 0; seed < 6; ++seed) {
    EXPECT_TRUE(has_pattern(addresses[seed], kBytes, seed)) << seed;
  }
}

TEST_F(PrefetcherTest, WaitsForRoomAndTakesCachedExtentsFirst) {
  const char* wanted = cold(1);
  char* filler = engine_.allocate(8 * kBytes);
  Prefetcher prefetcher(engine_->heap(), *engine_->migrations());
  prefetcher.start();
  const std::vector<Order> orders = {order(wanted)};
  prefetcher.order(orders);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(engine_.is_cold(wanted)) << "there is no room";
  engine_.free(filler);
  EXPECT_TRUE(eventually([&] { return engine_.is_resident(wanted); }));
}

TEST_F(PrefetcherTest, ForgetsWhatItWasTold) {
  const char* wanted = cold(1);
  char* filler = engine_.allocate(8 * kBytes);
  Prefetcher prefetcher(engine_->heap(), *engine_->migrations());
  prefetcher.start();
  const std::vector<Order> orders = {order(wanted)};
  prefetcher.order(orders);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  prefetcher.forget();
  engine_.free(filler);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(engine_.is_cold(wanted));
}

}  // namespace
}  // namespace tencache
