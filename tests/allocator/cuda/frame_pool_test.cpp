// SPDX-License-Identifier: Apache-2.0
//
// FramePool: frames of any size are built from handles that exist, the limit and the GPU's own
// capacity hold, a handle is given up only for one of another size, and a refusal of the driver
// leaves the pool as it was. Random steps run against a reference model, and several threads at
// once.
#include "platform/cuda/frame_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
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

std::vector<uint64_t> sizes_of(const Frame& frame) {
  std::vector<uint64_t> sizes;
  for (const FrameHandle& handle : frame.handles) sizes.push_back(handle.bytes / kUnit);
  return sizes;
}

TEST_F(FramePoolTest, AFrameOfTheSameSizeIsUsedAgain) {
  start(64 * kMiB);
  const Frame first = take(4 * kUnit);
  pool_->give_back(first);
  EXPECT_EQ(pool_->free_bytes(), 4 * kUnit);
  const Frame other = take(2 * kUnit);
  const Frame again = take(4 * kUnit);
  EXPECT_EQ(again.handles.front().handle, first.handles.front().handle);
  EXPECT_NE(other.handles.front().handle, first.handles.front().handle);
  EXPECT_EQ(driver_->calls("cuMemCreate"), 2u);
  EXPECT_EQ(pool_->bytes(), 6 * kUnit);
  EXPECT_EQ(pool_->free_bytes(), 0u);
  EXPECT_EQ(pool_->used_bytes(), 6 * kUnit);
  pool_->give_back(again);
  pool_->give_back(other);
}

TEST_F(FramePoolTest, HandlesServeFramesOfOtherSizes) {
  start(64 * kMiB);
  const Frame large = take(15 * kUnit);
  EXPECT_EQ(sizes_of(large), (std::vector<uint64_t>{8, 4, 2, 1}));
  pool_->give_back(large);
  const Frame ten = take(10 * kUnit);
  const Frame five = take(5 * kUnit);
  EXPECT_EQ(sizes_of(ten), (std::vector<uint64_t>{8, 2}));
  EXPECT_EQ(sizes_of(five), (std::vector<uint64_t>{4, 1}));
  EXPECT_EQ(driver_->calls("cuMemCreate"), 4u);
  pool_->give_back(ten);
  pool_->give_back(five);
  const Frame joined = take(15 * kUnit);
  EXPECT_EQ(driver_->calls("cuMemCreate"), 4u);
  pool_->give_back(joined);
}

TEST_F(FramePoolTest, TellsWhatFreeHandlesMiss) {
  start(64 * kMiB);
  EXPECT_EQ(pool_->missing(kUnit), kUnit);
  pool_->give_back(take(6 * kUnit));
  EXPECT_EQ(pool_->missing(6 * kUnit), 0u);
  EXPECT_EQ(pool_->missing(5 * kUnit), kUnit) << "four of two handles, and none of one";
  EXPECT_EQ(pool_->missing(9 * kUnit), 3 * kUnit);
}

// As far as it may, the pool grows for a size that it cannot build. Otherwise it gives up a handle
// for others.
TEST_F(FramePoolTest, ALargeHandleGoesForSmallOnes) {
  start(6 * kUnit);
  pool_->give_back(take(4 * kUnit));
  const Frame two = take(2 * kUnit);
  EXPECT_EQ(driver_->calls("cuMemRelease"), 0u);
  EXPECT_EQ(pool_->bytes(), 6 * kUnit);
  const Frame three = take(3 * kUnit);
  EXPECT_EQ(driver_->calls("cuMemRelease"), 1u);
  EXPECT_EQ(sizes_of(three), (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(pool_->bytes(), 5 * kUnit);
  pool_->give_back(two);
  pool_->give_back(three);
}

TEST_F(FramePoolTest, WhatIsAllowedHoldsForFreeHandlesAlone) {
  start(64 * kUnit);
  pool_->give_back(take(4 * kUnit));
  const Result<Frame> three = pool_->take_reserved(3 * kUnit, false, 5 * kUnit);
  ASSERT_TRUE(three.is_ok());
  EXPECT_EQ(pool_->bytes(), 3 * kUnit) << "the handle of four went first";
  EXPECT_EQ(pool_->take_within(5 * kUnit, 4 * kUnit, false).status().code(),
            StatusCode::kOutOfMemory);
  EXPECT_EQ(pool_->bytes(), 3 * kUnit);
  const Result<Frame> beyond = pool_->take_reserved(4 * kUnit, false, 5 * kUnit);
  ASSERT_TRUE(beyond.is_ok());
  EXPECT_EQ(pool_->bytes(), 7 * kUnit);
  pool_->give_back(three.value());
  pool_->give_back(beyond.value());
}

// One frame after the other gets a unit longer, as caches do that grow by a token.
TEST_F(FramePoolTest, APoolThatGrowsAsksForMoreAtOnce) {
  constexpr uint64_t kFrames = 32;
  start(4096 * kUnit, {.capacity_bytes = 4096 * kUnit});
  std::vector<Frame> frames;
  for (uint64_t index = 0; index < kFrames; ++index) frames.push_back(take(16 * kUnit));
  const uint64_t calls = driver_->calls("cuMemCreate");
  for (uint64_t units = 17; units < 24; ++units) {
    for (Frame& frame : frames) {
      pool_->give_back(frame);
      const Result<Frame> longer =
          pool_->take_reserved(units * kUnit, false, pool_->used_bytes() * 17 / 16 + units * kUnit);
      ASSERT_TRUE(longer.is_ok());
      frame = longer.value();
    }
  }
  EXPECT_LT(driver_->calls("cuMemCreate") - calls, 7 * kFrames / 2);
  EXPECT_LT(pool_->bytes(), 24 * kFrames * kUnit * 17 / 16);
  for (const Frame& frame : frames) pool_->give_back(frame);
}

TEST_F(FramePoolTest, SmallHandlesGoFirst) {
  start(64 * kMiB);
  pool_->give_back(take(7 * kUnit));
  EXPECT_EQ(pool_->trim(2 * kUnit), 3 * kUnit) << "whole handles";
  EXPECT_EQ(pool_->bytes(), 4 * kUnit);
  pool_->set_limit(3 * kUnit);
  EXPECT_EQ(pool_->bytes(), 0u);
}

TEST_F(FramePoolTest, UseIsCountedByKind) {
  start(64 * kMiB);
  const Frame small = pool_->take_reserved(2 * kUnit, true).value();
  const Frame large = pool_->take_reserved(3 * kUnit).value();
  FrameUses uses = pool_->uses();
  EXPECT_EQ(uses.small.bytes.current, 2 * kUnit);
  EXPECT_EQ(uses.large.bytes.current, 3 * kUnit);
  EXPECT_EQ(uses.large.frames.current, 1u) << "of two handles";
  EXPECT_EQ(uses.all.frames.current, 2u);
  pool_->give_back(small);
  const Frame both = pool_->take_reserved(3 * kUnit).value();  // one handle serves another kind
  uses = pool_->uses();
  EXPECT_EQ(uses.small.bytes.current, 0u);
  EXPECT_EQ(uses.large.bytes.current, 6 * kUnit);
  EXPECT_EQ(uses.small.frames.removed, 1u);
  EXPECT_EQ(uses.all.bytes.peak, 6 * kUnit);
  pool_->give_back(large);
  pool_->give_back(both);
  uses = pool_->uses();
  EXPECT_EQ(uses.all.frames.current, 0u);
  EXPECT_EQ(uses.all.bytes.current, 6 * kUnit);
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

// The GPU has less than the limit allows, just enough for what two threads hold at a time.
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
  // The limit allows it, the GPU does not, and what is free is not enough either.
  const Result<Frame> refused = pool_->take(3 * kUnit);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(pool_->bytes(), 3 * kUnit);
  EXPECT_EQ(pool_->free_bytes(), kUnit);
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

// The handles that were created before the refused one wait for the next frame.
TEST_F(FramePoolTest, ARefusalHalfWayLosesNoHandle) {
  start(64 * kMiB);
  for (uint64_t nth = 1; nth <= 3; ++nth) {
    SCOPED_TRACE(nth);
    driver_->fail("cuMemCreate", nth, CUDA_ERROR_UNKNOWN);
    ASSERT_FALSE(pool_->take(7 * kUnit).is_ok());
    const uint64_t created_bytes = std::vector<uint64_t>{0, 4, 6}[nth - 1] * kUnit;
    EXPECT_EQ(pool_->bytes(), created_bytes);
    EXPECT_EQ(pool_->free_bytes(), created_bytes);
    EXPECT_EQ(pool_->uses().all.frames.added, nth - 1);
    const Frame frame = take(7 * kUnit);
    EXPECT_EQ(frame.bytes, 7 * kUnit);
    EXPECT_EQ(pool_->bytes(), 7 * kUnit);
    pool_->give_back(frame);
    EXPECT_EQ(pool_->trim(~uint64_t{0}), 7 * kUnit);
  }
}

// What is in use, as the pool should see it.
struct PoolModel {
  std::vector<Frame> held;
  uint64_t held_bytes = 0;
  std::set<CUmemGenericAllocationHandle> used;

  void add(const Frame& frame, uint64_t bytes) {
    uint64_t handle_bytes = 0;
    for (const FrameHandle& handle : frame.handles) {
      ASSERT_TRUE(used.insert(handle.handle).second) << "a handle is in two frames";
      ASSERT_TRUE(std::has_single_bit(handle.bytes / kUnit));
      handle_bytes += handle.bytes;
    }
    ASSERT_EQ(handle_bytes, bytes);
    ASSERT_EQ(frame.bytes, bytes);
    held.push_back(frame);
    held_bytes += bytes;
  }
  Frame remove(size_t index) {
    Frame frame = held[index];
    for (const FrameHandle& handle : frame.handles) used.erase(handle.handle);
    held_bytes -= frame.bytes;
    held[index] = held.back();
    held.pop_back();
    return frame;
  }
};

// Sizes change all the time, and what is allowed, too: frames join and split handles.
TEST_F(FramePoolTest, RandomStepsAgainstAModel) {
  Random random;
  constexpr uint64_t kLimit = 96 * kUnit;
  start(kLimit, {.capacity_bytes = kLimit});
  PoolModel model;
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t bytes = random.between(1, random.chance(0.1) ? 80 : 12) * kUnit;
    const uint64_t draw = random.between(0, 99);
    if (random.chance(0.02)) driver_->fail("cuMemCreate", 1, CUDA_ERROR_UNKNOWN);
    if (draw < 5) {
      pool_->trim(bytes);
    } else if (draw < 20) {
      const uint64_t missing_bytes = pool_->missing(bytes);
      const uint64_t before = pool_->bytes();
      const uint64_t allowed_bytes = random.between(1, 120) * kUnit;
      const Result<Frame> frame = pool_->take_within(allowed_bytes, bytes, random.chance(0.5));
      if (missing_bytes == 0) {
        ASSERT_TRUE(frame.is_ok()) << frame.status().message();
        ASSERT_EQ(pool_->bytes(), before);
      } else if (frame.is_ok()) {
        ASSERT_LE(pool_->bytes(), allowed_bytes);
      }
      if (frame.is_ok()) {
        ASSERT_NO_FATAL_FAILURE(model.add(frame.value(), bytes));
      }
    } else if (draw < 55) {
      const uint64_t allowed_bytes = random.between(1, 120) * kUnit;
      const bool is_reserved = model.held_bytes + bytes <= kLimit && random.chance(0.5);
      const Result<Frame> frame =
          is_reserved ? pool_->take_reserved(bytes, random.chance(0.5), allowed_bytes)
                      : pool_->take(bytes);
      // The GPU has as much as the limit allows, so room that is not held is always available.
      if (!frame.is_ok() && frame.status().code() == StatusCode::kOutOfMemory) {
        ASSERT_GT(model.held_bytes + bytes, kLimit) << frame.status().message();
      }
      if (frame.is_ok()) {
        ASSERT_NO_FATAL_FAILURE(model.add(frame.value(), bytes));
      }
    } else if (!model.held.empty()) {
      pool_->give_back(model.remove(random.between(0, model.held.size() - 1)));
    }
    ASSERT_LE(pool_->bytes(), kLimit);
    ASSERT_EQ(pool_->used_bytes(), model.held_bytes);
    ASSERT_EQ(pool_->bytes() - pool_->free_bytes(), model.held_bytes);
    ASSERT_EQ(pool_->uses().all.frames.current, model.held.size());
    ASSERT_EQ(pool_->uses().all.bytes.current, pool_->bytes());
    ASSERT_EQ(pool_->uses().small.bytes.current + pool_->uses().large.bytes.current,
              pool_->bytes());
  }
  for (const Frame& frame : model.held) pool_->give_back(frame);
}

// Once the handles are as small as the sizes need, the driver is hardly asked any more. How often
// depends on the sizes, so they are the same in every run.
TEST_F(FramePoolTest, RandomSizesSoonNeedNoNewHandles) {
  Random random = Random::fixed(1);
  constexpr uint64_t kLive = 512 * kUnit;
  constexpr uint64_t kAllowed = kLive + kLive / 16;
  start(2 * kLive, {.capacity_bytes = 2 * kLive});
  PoolModel model;
  uint64_t calls = 0;
  constexpr int kSteps = 8'000;
  for (int step = 0; step < kSteps; ++step) {
    if (step == kSteps / 2) calls = driver_->calls("cuMemCreate");
    const uint64_t bytes = random.between(1, 64) * kUnit;
    while (model.held_bytes + bytes > kLive) {
      pool_->give_back(model.remove(random.between(0, model.held.size() - 1)));
    }
    const Result<Frame> frame = pool_->take_reserved(bytes, false, kAllowed);
    ASSERT_TRUE(frame.is_ok()) << frame.status().message();
    ASSERT_NO_FATAL_FAILURE(model.add(frame.value(), bytes));
    ASSERT_LE(pool_->bytes(), kAllowed);
  }
  EXPECT_LE(driver_->calls("cuMemCreate") - calls, kSteps / 2 / 100);
  for (const Frame& frame : model.held) pool_->give_back(frame);
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
        // Each thread takes at most a quarter of the limit, so the frame must be there.
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
