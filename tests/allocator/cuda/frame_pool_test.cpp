// SPDX-License-Identifier: Apache-2.0
//
// FramePool: frames of exact sizes are reused, the limit and the GPU's own capacity hold, the
// oldest frames go first, and a refusal of the driver leaves the pool as it was. Random steps
// against a reference model, and several threads at once.
#include "platform/cuda/frame_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "support/cuda/simulated_driver.h"
#include "support/random.h"

namespace tencache {
namespace {

constexpr uint64_t kUnit = 2 * kMiB;

class FramePoolTest : public ::testing::Test {
 protected:
  void start(uint64_t limit_bytes, const SimulatedDriverConfig& config = {}) {
    driver_.emplace(config);
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(driver_->api(), 0);
    ASSERT_TRUE(gpu.is_ok()) << gpu.status().message();
    gpu_ = std::move(gpu).value();
    pool_.emplace(*gpu_, limit_bytes);
  }
  Frame take(uint64_t bytes) {
    const Result<Frame> frame = pool_->take(bytes);
    EXPECT_TRUE(frame.is_ok()) << frame.status().message();
    return frame.is_ok() ? frame.value() : Frame{};
  }
  ~FramePoolTest() override {
    pool_.reset();
    gpu_.reset();
    if (driver_.has_value()) {
      EXPECT_EQ(driver_->leaks(), "");
    }
  }

  std::optional<SimulatedDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<FramePool> pool_;
};

TEST_F(FramePoolTest, AFrameOfTheSameSizeIsUsedAgain) {
  start(64 * kMiB);
  const Frame first = take(4 * kUnit);
  pool_->give_back(first);
  EXPECT_EQ(pool_->free_bytes(), 4 * kUnit);
  const Frame other = take(2 * kUnit);
  const Frame again = take(4 * kUnit);
  EXPECT_EQ(again.handle, first.handle);
  EXPECT_NE(other.handle, first.handle);
  EXPECT_EQ(driver_->calls("cuMemCreate"), 2u);
  EXPECT_EQ(pool_->bytes(), 6 * kUnit);
  EXPECT_EQ(pool_->free_bytes(), 0u);
  pool_->give_back(again);
  pool_->give_back(other);
}

TEST_F(FramePoolTest, WhatWaitedLongestMakesRoom) {
  start(4 * kUnit);
  const Frame old = take(kUnit);
  const Frame newer = take(2 * kUnit);
  const Frame used = take(kUnit);
  pool_->give_back(old);
  pool_->give_back(newer);
  // One unit is missing: the older frame goes, which is enough only together with the other.
  const Frame large = take(3 * kUnit);
  EXPECT_EQ(pool_->bytes(), 4 * kUnit);
  EXPECT_EQ(driver_->calls("cuMemRelease"), 2u);
  pool_->give_back(large);
  pool_->give_back(used);
  EXPECT_EQ(pool_->trim(kUnit), 3 * kUnit) << "whole frames, oldest first";
  EXPECT_EQ(pool_->bytes(), kUnit);
}

TEST_F(FramePoolTest, TheLimitIsHard) {
  start(4 * kUnit);
  const Frame frame = take(3 * kUnit);
  const Result<Frame> refused = pool_->take(2 * kUnit);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(refused.status().message().find("4.00 MiB"), std::string::npos)
      << refused.status().message();
  EXPECT_EQ(pool_->bytes(), 3 * kUnit);
  pool_->give_back(frame);
}

TEST_F(FramePoolTest, WhatCannotBeMetCostsNoFrame) {
  start(8 * kUnit);
  const Frame used = take(6 * kUnit);
  pool_->give_back(take(2 * kUnit));
  EXPECT_EQ(pool_->take(3 * kUnit).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(pool_->take(100 * kUnit).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(pool_->free_bytes(), 2 * kUnit) << "it waits still";
  EXPECT_EQ(driver_->calls("cuMemRelease"), 0u);
  pool_->give_back(used);
}

// Others hold all that the limit would allow; two threads share the rest, just enough for each.
TEST_F(FramePoolTest, AThreadWaitsForWhatAnotherGivesBack) {
  start(64 * kMiB, {.capacity_bytes = 4 * kUnit});
  driver_->set_latency("cuMemRelease", std::chrono::milliseconds(1));
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 2; ++number) {
    threads.emplace_back([this, number] {
      Random random(number);
      for (int step = 0; step < 100; ++step) {
        const Result<Frame> frame = pool_->take(random.between(1, 2) * kUnit);
        ASSERT_TRUE(frame.is_ok()) << frame.status().message();
        pool_->give_back(frame.value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(FramePoolTest, OthersMayUseTheGpuToo) {
  start(64 * kMiB, {.capacity_bytes = 4 * kUnit});
  const Frame frame = take(2 * kUnit);
  const Frame small = take(kUnit);
  pool_->give_back(small);
  // The limit allows it, the GPU does not: free frames go first, and that is not enough either.
  const Result<Frame> refused = pool_->take(3 * kUnit);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(pool_->bytes(), 2 * kUnit);
  const Frame fits = take(2 * kUnit);
  pool_->give_back(fits);
  pool_->give_back(frame);
}

TEST_F(FramePoolTest, RefusedCallsLeaveThePoolAsItWas) {
  start(64 * kMiB);
  const Frame kept = take(kUnit);
  for (const char* name :
       {"cuMemCreate", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"}) {
    SCOPED_TRACE(name);
    driver_->fail(name, 1, CUDA_ERROR_UNKNOWN);
    const Result<Frame> refused = pool_->take(2 * kUnit);
    ASSERT_FALSE(refused.is_ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kIoError);
    EXPECT_EQ(pool_->bytes(), kUnit);
  }
  pool_->give_back(take(2 * kUnit));
  pool_->give_back(kept);
}

TEST_F(FramePoolTest, RandomStepsAgainstAModel) {
  Random random;
  constexpr uint64_t kLimit = 32 * kUnit;
  start(kLimit, {.capacity_bytes = kLimit});
  std::vector<Frame> held;
  uint64_t held_bytes = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (random.chance(0.5)) {
      const uint64_t bytes = random.between(1, 8) * kUnit;
      if (random.chance(0.02)) driver_->fail("cuMemCreate", 1, CUDA_ERROR_UNKNOWN);
      const Result<Frame> frame = pool_->take(bytes);
      // With an exact limit, room that is not held is always available.
      if (!frame.is_ok()) {
        if (frame.status().code() == StatusCode::kOutOfMemory) {
          ASSERT_GT(held_bytes + bytes, kLimit) << frame.status().message();
        }
        continue;
      }
      ASSERT_EQ(frame.value().bytes, bytes);
      for (const Frame& other : held) ASSERT_NE(other.handle, frame.value().handle);
      held.push_back(frame.value());
      held_bytes += bytes;
    } else if (!held.empty()) {
      const size_t index = random.between(0, held.size() - 1);
      pool_->give_back(held[index]);
      held_bytes -= held[index].bytes;
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
    }
    ASSERT_LE(pool_->bytes(), kLimit);
    ASSERT_EQ(pool_->bytes() - pool_->free_bytes(), held_bytes);
  }
  for (const Frame& frame : held) pool_->give_back(frame);
}

TEST_F(FramePoolTest, ThreadsThatShareTheRoomNeverFindItMissing) {
  constexpr int kThreads = 4;
  constexpr uint64_t kLimit = kThreads * 4 * kUnit;
  start(kLimit, {.capacity_bytes = kLimit});
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([this, number] {
      Random random(static_cast<uint64_t>(number));
      for (int step = 0; step < 500; ++step) {
        // At most a quarter of the limit each, so it must be there.
        const Result<Frame> frame = pool_->take(random.between(1, 4) * kUnit);
        ASSERT_TRUE(frame.is_ok()) << frame.status().message();
        pool_->give_back(frame.value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool_->free_bytes(), pool_->bytes());
}

}  // namespace
}  // namespace tencache
