// SPDX-License-Identifier: Apache-2.0
//
// CopyPause: copies to the host, and the rest of one that is under way, wait while a thread pauses
// them; an arena pauses them while it maps; an overdue pause ends by itself; where the driver
// refuses, copies go on.
#include "platform/cuda/copy_pause.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "platform/cuda/copy_stream.h"
#include "platform/cuda/device_arena.h"
#include "platform/cuda/frame_pool.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"

namespace tencache {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

constexpr uint64_t kPiece = CopyPause::kPieceBytes;
constexpr uint64_t kBytes = 2 * kPiece + 4 * kMiB;

class CopyPauseTest : public ::testing::Test {
 protected:
  CopyPauseTest() : driver_({.reads_may_race = true}), context_(driver_.api()), marks_(gpu()) {
    memset(device_.data(), 7, kBytes);
    memset(host_.data(), 0, kBytes);
  }

  static std::unique_ptr<Gpu> open_gpu(const DriverApi& api) {
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(api, 0);
    EXPECT_TRUE(gpu.is_ok()) << gpu.status().message();
    return std::move(gpu).value();
  }
  const Gpu& gpu() {
    if (gpu_ == nullptr) gpu_ = open_gpu(driver_.api());
    return *gpu_;
  }
  void start(std::chrono::nanoseconds patience = hours(1)) {
    Result<std::unique_ptr<CopyPause>> pause = CopyPause::create(gpu(), patience);
    ASSERT_TRUE(pause.is_ok()) << pause.status().message();
    pause_ = std::move(pause).value();
    pausing_ = make_stream(pause_.get());
    plain_ = make_stream(nullptr);
  }
  std::unique_ptr<CopyStream> make_stream(const CopyPause* pause) {
    Result<std::unique_ptr<CopyStream>> made = CopyStream::create(gpu(), marks_, pause);
    EXPECT_TRUE(made.is_ok()) << made.status().message();
    return std::move(made).value();
  }
  void copy(uint64_t bytes = kBytes) {
    ASSERT_TRUE(pausing_->to_host(host_.data(), device_.address(), bytes).is_ok());
  }
  // Another stream copies meanwhile, so a copy that does not wait would be done by the end.
  void let_time_pass() {
    for (int round = 0; round < 20; ++round) {
      ASSERT_TRUE(plain_->to_host(other_.data(), device_.address(), kMiB).is_ok());
      ASSERT_TRUE(plain_->wait_until_idle().is_ok());
    }
  }
  char byte_at(uint64_t offset) const {
    return std::atomic_ref<char>(host_.data()[offset]).load(std::memory_order_acquire);
  }

  SimulatedDriver driver_;
  std::unique_ptr<Gpu> gpu_;
  CurrentContext context_;
  StreamMarks marks_;
  DeviceBuffer device_{driver_.api(), kBytes};
  PinnedBuffer host_{driver_.api(), kBytes};
  PinnedBuffer other_{driver_.api(), kMiB};
  std::unique_ptr<CopyPause> pause_;
  std::unique_ptr<CopyStream> pausing_;
  std::unique_ptr<CopyStream> plain_;
};

TEST_F(CopyPauseTest, CopiesBeginWhenNoThreadPauses) {
  start();
  {
    std::optional<CopyPause::Scope> first(pause_.get());
    const CopyPause::Scope second(pause_.get());
    copy();
    let_time_pass();
    EXPECT_EQ(byte_at(0), 0);
    first.reset();
    let_time_pass();
    EXPECT_EQ(byte_at(0), 0) << "another thread still pauses";
  }
  ASSERT_TRUE(pausing_->wait_until_idle().is_ok());
  EXPECT_EQ(byte_at(kBytes - 1), 7);
}

TEST_F(CopyPauseTest, ACopyUnderWayStopsAfterItsPiece) {
  start();
  driver_.hold_copies(1);
  copy();
  while (byte_at(kPiece - 1) == 0) std::this_thread::yield();
  // The second piece has begun by now, or is about to find the pause.
  {
    const CopyPause::Scope paused(pause_.get());
    driver_.let_go();
    let_time_pass();
    EXPECT_EQ(byte_at(2 * kPiece), 0);
  }
  ASSERT_TRUE(pausing_->wait_until_idle().is_ok());
  EXPECT_EQ(memcmp(host_.data(), device_.data(), kBytes), 0);
}

// Small copies that make up a piece share one wait for the pause.
TEST_F(CopyPauseTest, AStreamHoldsBackOncePerPiece) {
  start();
  for (int copies = 0; copies < 16; ++copies) copy(kPiece / 8);
  EXPECT_EQ(driver_.calls("cuStreamWaitValue64"), 2u);
  copy(3 * kMiB);
  copy(kBytes - 4 * kMiB);
  EXPECT_EQ(driver_.calls("cuStreamWaitValue64"), 5u);
  ASSERT_TRUE(pausing_->wait_until_idle().is_ok());
}

TEST_F(CopyPauseTest, AnArenaPausesCopiesWhileItMaps) {
  start();
  FramePool frames(gpu(), 64 * kMiB);
  Result<std::unique_ptr<DeviceArena>> arena = DeviceArena::reserve(gpu(), 64 * kMiB, pause_.get());
  ASSERT_TRUE(arena.is_ok());
  const Result<Frame> frame = frames.take(2 * kMiB);
  ASSERT_TRUE(frame.is_ok());
  const FramePlace place{arena.value()->base(), frame.value()};
  const uint64_t calls = driver_.calls("cuMemSetAccess");
  driver_.set_latency("cuMemSetAccess", milliseconds(50));
  std::thread mapping([&] { EXPECT_TRUE(arena.value()->map({&place, 1}).is_ok()); });
  while (driver_.calls("cuMemSetAccess") == calls) std::this_thread::yield();
  // If the stream were not held back, this kernel would begin before it has access.
  pause_->hold_back(pausing_->handle());
  std::atomic<char> seen = 1;
  ASSERT_EQ(driver_.launch(pausing_->handle(), {{place.address, 2 * kMiB}},
                           [&] { seen = *reinterpret_cast<char*>(place.address); }),
            CUDA_SUCCESS);
  mapping.join();
  ASSERT_TRUE(pausing_->wait_until_idle().is_ok());
  EXPECT_EQ(seen, 0);
  ASSERT_TRUE(arena.value()->unmap(place.address, 2 * kMiB).is_ok());
  frames.give_back(frame.value());
}

// Between the two rounds the watcher falls asleep, so the second pause has to wake it.
TEST_F(CopyPauseTest, CopiesThatWereHeldForTooLongGoOn) {
  constexpr milliseconds kPatience{2};
  start(kPatience);
  for (int round = 0; round < 2; ++round) {
    memset(host_.data(), 0, kBytes);
    const auto begin = std::chrono::steady_clock::now();
    {
      const CopyPause::Scope paused(pause_.get());
      copy();
      ASSERT_TRUE(pausing_->wait_until_idle().is_ok());
      EXPECT_EQ(byte_at(kBytes - 1), 7);
      const CopyPause::Scope later(pause_.get());
      copy();
      ASSERT_TRUE(pausing_->wait_until_idle().is_ok()) << "nobody holds them again meanwhile";
    }
    EXPECT_GE(std::chrono::steady_clock::now() - begin, kPatience);
    std::this_thread::sleep_for(100 * kPatience);
  }
}

// However many threads pause one after the other, copies are held no longer than for one pause.
TEST_F(CopyPauseTest, PausesThatOverlapDoNotAddUp) {
  start(milliseconds(2));
  std::optional<CopyPause::Scope> scopes[2];
  scopes[0].emplace(pause_.get());
  copy();
  const StreamMark arrived = std::move(pausing_->mark()).value();
  for (int turn = 1; !arrived.is_reached().value(); turn = 1 - turn) {
    scopes[turn].emplace(pause_.get());
    scopes[1 - turn].reset();
  }
  EXPECT_EQ(byte_at(kBytes - 1), 7);
}

TEST_F(CopyPauseTest, CopiesToOtherMemoryDoNotWaitForMappings) {
  start();
  std::vector<char> pageable(kBytes);
  const CopyPause::Scope paused(pause_.get());
  ASSERT_TRUE(pausing_->to_host(pageable.data(), device_.address(), kBytes, false).is_ok());
  EXPECT_EQ(pageable.back(), 7);
}

TEST_F(CopyPauseTest, WhereTheDriverRefusesCopiesGoOn) {
  start();
  driver_.fail("cuStreamWaitValue64", 1, CUDA_ERROR_NOT_SUPPORTED);
  const CopyPause::Scope paused(pause_.get());
  copy(kPiece);
  ASSERT_TRUE(pausing_->wait_until_idle().is_ok());
  EXPECT_EQ(byte_at(kPiece - 1), 7);
}

TEST_F(CopyPauseTest, EveryRefusedCallIsAStatusAndLeavesNothing) {
  const std::string before = driver_.leaks();
  for (const char* call :
       {"cuDeviceGetAttribute", "cuMemHostRegister", "cuMemHostGetDevicePointer"}) {
    driver_.fail(call, 1, CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(CopyPause::create(gpu()).status().code(), StatusCode::kUnavailable) << call;
    EXPECT_EQ(driver_.leaks(), before) << call;
  }
}

}  // namespace
}  // namespace tencache
