// SPDX-License-Identifier: Apache-2.0
//
// StreamMark and CopyStream: copies wait for kernels and kernels for copies, on the device; the two
// directions run side by side; events are reused; every refused call is a Status and leaves nothing
// behind. Random programs over several streams keep the order that the marks promise.
#include "platform/cuda/copy_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/units.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"
#include "support/random.h"

namespace tencache {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kBytes = 2 * kMiB;

class CopyStreamTest : public ::testing::Test {
 protected:
  ~CopyStreamTest() override {
    if (!driver_.has_value()) return;
    down_.reset();
    up_.reset();
    if (program_ != nullptr) api().cuStreamDestroy(program_);
    host_.reset();
    device_.reset();
    marks_.reset();
    context_.reset();
    gpu_.reset();
    EXPECT_EQ(driver_->leaks(), "");
  }

  void start(const SimulatedDriverConfig& config = {}) {
    driver_.emplace(config);
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(api(), 0);
    ASSERT_TRUE(gpu.is_ok()) << gpu.status().message();
    gpu_ = std::move(gpu).value();
    context_.emplace(api());
    marks_.emplace(*gpu_);
    device_.emplace(api(), kBytes);
    host_.emplace(api(), kBytes);
    ASSERT_EQ(api().cuStreamCreateWithPriority(&program_, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    down_ = make_stream();
    up_ = make_stream();
  }
  std::unique_ptr<CopyStream> make_stream() {
    Result<std::unique_ptr<CopyStream>> made = CopyStream::create(*gpu_, *marks_);
    EXPECT_TRUE(made.is_ok()) << made.status().message();
    return std::move(made).value();
  }
  const DriverApi& api() { return driver_->api(); }
  StreamMark mark_program() {
    Result<StreamMark> mark = marks_->make(program_);
    EXPECT_TRUE(mark.is_ok()) << mark.status().message();
    return std::move(mark).value();
  }
  static StreamMark mark_of(CopyStream& stream) {
    Result<StreamMark> mark = stream.mark();
    EXPECT_TRUE(mark.is_ok()) << mark.status().message();
    return std::move(mark).value();
  }
  void launch(std::function<void()> kernel, milliseconds duration = {}) {
    ASSERT_EQ(
        driver_->launch(program_, {{device_->address(), kBytes}}, std::move(kernel), duration),
        CUDA_SUCCESS);
  }

  std::optional<SimulatedDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<CurrentContext> context_;
  std::optional<StreamMarks> marks_;
  std::optional<DeviceBuffer> device_;
  std::optional<PinnedBuffer> host_;
  CUstream program_ = nullptr;
  std::unique_ptr<CopyStream> down_;
  std::unique_ptr<CopyStream> up_;
};

TEST_F(CopyStreamTest, ACopyWaitsForTheKernelBeforeItAndNoThreadDoes) {
  start();
  driver_->hold(program_);
  launch([this] { memset(device_->data(), 7, kBytes); });
  ASSERT_TRUE(down_->wait_for(mark_program()).is_ok());
  ASSERT_TRUE(down_->to_host(host_->data(), device_->address(), kBytes).is_ok());
  const StreamMark arrived = mark_of(*down_);
  const Result<bool> at_once = arrived.is_reached();
  ASSERT_TRUE(at_once.is_ok());
  EXPECT_FALSE(at_once.value());
  driver_->let_go();
  ASSERT_TRUE(arrived.wait().is_ok());
  EXPECT_TRUE(arrived.is_reached().value());
  EXPECT_EQ(host_->data()[kBytes - 1], 7);
  EXPECT_EQ(driver_->calls("cuStreamSynchronize"), 0u);
  EXPECT_EQ(driver_->calls("cuEventSynchronize"), 1u) << "the one that was asked for";
}

TEST_F(CopyStreamTest, AKernelWaitsForTheCopyBeforeIt) {
  start({.to_device_bytes_per_s = 100 * kMiB});
  memset(host_->data(), 9, kBytes);
  ASSERT_TRUE(up_->to_device(device_->address(), host_->data(), kBytes).is_ok());
  ASSERT_TRUE(mark_of(*up_).hold_back(program_).is_ok());
  std::atomic<char> seen = 0;
  launch([&] { seen = device_->data()[kBytes - 1]; });
  ASSERT_TRUE(mark_program().wait().is_ok());
  EXPECT_EQ(seen, 9);
}

TEST_F(CopyStreamTest, AMarkMeansWhatTheStreamHadBeenGivenThen) {
  start();
  const StreamMark before = mark_program();
  driver_->hold(program_);
  ASSERT_TRUE(before.wait().is_ok());
  const StreamMark after = mark_program();
  EXPECT_FALSE(after.is_reached().value());
  driver_->let_go();
  ASSERT_TRUE(after.wait().is_ok());
  EXPECT_TRUE(StreamMark().is_reached().value()) << "of no stream";
  EXPECT_TRUE(StreamMark().wait().is_ok());
  EXPECT_TRUE(StreamMark().hold_back(program_).is_ok());
}

TEST_F(CopyStreamTest, EventsAreUsedAgain) {
  start();
  for (int round = 0; round < 100; ++round) {
    const StreamMark first = mark_program();
    const StreamMark second = mark_of(*up_);
  }
  EXPECT_EQ(driver_->calls("cuEventCreate"), 2u);
  EXPECT_EQ(driver_->calls("cuEventRecord"), 200u);
}

TEST_F(CopyStreamTest, AnEventThatIsUsedAgainStillHoldsBackWhoWaitedForIt) {
  start();
  std::atomic<bool> is_done = false;
  launch([&] { is_done = true; }, milliseconds(20));
  ASSERT_TRUE(mark_program().hold_back(program_).is_ok());
  std::atomic<bool> was_done = false;
  CUstream other = nullptr;
  ASSERT_EQ(api().cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  ASSERT_TRUE(mark_program().hold_back(other).is_ok());
  // This reuses the event for a stream with nothing to do.
  ASSERT_TRUE(mark_of(*up_).wait().is_ok());
  ASSERT_EQ(driver_->launch(other, {}, [&] { was_done = is_done.load(); }), CUDA_SUCCESS);
  driver_->wait_until_idle();
  EXPECT_TRUE(was_done);
  EXPECT_EQ(driver_->calls("cuEventCreate"), 1u);
  api().cuStreamDestroy(other);
}

TEST_F(CopyStreamTest, EveryRefusedCallIsAStatus) {
  start();
  const auto refused = [&](const char* name, auto call) {
    SCOPED_TRACE(name);
    driver_->fail(name, 1, CUDA_ERROR_UNKNOWN);
    const Status status = call();
    EXPECT_EQ(status.code(), StatusCode::kIoError);
    EXPECT_NE(status.message().find("CUDA_ERROR_UNKNOWN"), std::string::npos) << status.message();
  };
  const auto create = [this] { return CopyStream::create(*gpu_, *marks_).status(); };
  const auto mark = [this] { return marks_->make(program_).status(); };
  for (const char* name : {"cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode"}) {
    refused(name, create);
    refused(name, mark);
  }
  refused("cuStreamCreateWithPriority", create);
  refused("cuEventCreate", mark);
  refused("cuEventRecord", mark);
  const StreamMark made = mark_program();
  refused("cuEventQuery", [&] { return made.is_reached().status(); });
  refused("cuEventSynchronize", [&] { return made.wait(); });
  refused("cuStreamWaitEvent", [&] { return made.hold_back(program_); });
  refused("cuMemcpyDtoHAsync",
          [&] { return down_->to_host(host_->data(), device_->address(), kBytes); });
  refused("cuMemcpyHtoDAsync",
          [&] { return up_->to_device(device_->address(), host_->data(), kBytes); });
}

// If the wait were given up, memory would go to others while a copy is under way.
TEST_F(CopyStreamTest, AWaitThatIsRefusedOnceIsAskedForAgain) {
  start();
  for (const char* name : {"cuStreamSynchronize", "cuCtxGetCurrent"}) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(up_->to_device(device_->address(), host_->data(), kBytes).is_ok());
    driver_->fail(name, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_TRUE(up_->wait_until_idle().is_ok());
    EXPECT_EQ(driver_->unfinished(up_->handle()), 0u);
  }
  driver_->fail("cuStreamSynchronize", 1, CUDA_ERROR_UNKNOWN);
  driver_->fail("cuStreamSynchronize", 2, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(up_->wait_until_idle().code(), StatusCode::kIoError);
}

// Threads hand one counter on the device from stream to stream. If marks keep the order, no step is
// lost.
TEST_F(CopyStreamTest, MarksKeepTheOrderOfManyStreams) {
  start();
  constexpr int kSteps = 300;
  Random random;
  std::vector<CUstream> streams(4);
  for (CUstream& stream : streams) {
    ASSERT_EQ(api().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  }
  uint64_t* const counter = reinterpret_cast<uint64_t*>(device_->data());
  StreamMark last;
  for (int step = 0; step < kSteps; ++step) {
    CUstream stream = streams[random.between(0, streams.size() - 1)];
    ASSERT_TRUE(last.hold_back(stream).is_ok());
    const auto pause = std::chrono::microseconds(random.between(0, 50));
    ASSERT_EQ(driver_->launch(
                  stream, {{device_->address(), 8}}, [counter] { ++*counter; }, pause),
              CUDA_SUCCESS);
    Result<StreamMark> mark = marks_->make(stream);
    ASSERT_TRUE(mark.is_ok());
    last = std::move(mark).value();
  }
  ASSERT_TRUE(down_->wait_for(last).is_ok());
  ASSERT_TRUE(down_->to_host(host_->data(), device_->address(), 8).is_ok());
  ASSERT_TRUE(mark_of(*down_).wait().is_ok());
  uint64_t counted = 0;
  memcpy(&counted, host_->data(), sizeof counted);
  EXPECT_EQ(counted, static_cast<uint64_t>(kSteps));
  last = StreamMark();
  for (const CUstream stream : streams) api().cuStreamDestroy(stream);
}

TEST_F(CopyStreamTest, ThreadsMakeMarksAtOnce) {
  start();
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([this] {
      for (int round = 0; round < 200; ++round) {
        Result<StreamMark> mark = marks_->make(program_);
        ASSERT_TRUE(mark.is_ok()) << mark.status().message();
        ASSERT_TRUE(mark.value().wait().is_ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(driver_->calls("cuEventCreate"), 4u);
}

}  // namespace
}  // namespace tencache
