// SPDX-License-Identifier: Apache-2.0
//
// Copies of pageable memory through pinned buffers: the same bytes both ways, in order with earlier
// and later work of the stream, from several threads that share two buffers, and with each call of
// the driver refused. The last tests have a whole engine, where the driver pins no more than the
// buffers.
#include "engine/move/cuda/staged_copies.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/units.h"
#include "platform/cuda/host_pinner.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"
#include "support/cuda/test_cuda_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 2 * kMiB;
constexpr uint64_t kBufferBytes = 256 * kKiB;

class StagedCopiesTest : public ::testing::Test {
 protected:
  ~StagedCopiesTest() override {
    if (!driver_.has_value()) return;
    close();
    EXPECT_EQ(driver_->leaks(), "");
  }
  // Closes everything but the driver.
  void close() {
    ring_.reset();
    streams_.clear();
    device_.clear();
    marks_.reset();
    pinner_.reset();
    context_.reset();
    gpu_.reset();
  }

  void start(const SimulatedDriverConfig& config = {}, size_t count = 1) {
    driver_.emplace(config);
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(api(), 0);
    ASSERT_TRUE(gpu.is_ok()) << gpu.status().message();
    gpu_ = std::move(gpu).value();
    context_.emplace(api());
    marks_.emplace(*gpu_);
    pinner_.emplace(api(), gpu_->context());
    for (size_t index = 0; index < count; ++index) {
      device_.push_back(std::make_unique<DeviceBuffer>(api(), kBytes));
      Result<std::unique_ptr<CopyStream>> stream = CopyStream::create(*gpu_, *marks_);
      ASSERT_TRUE(stream.is_ok()) << stream.status().message();
      streams_.push_back(std::move(stream).value());
    }
    Result<std::unique_ptr<StagingRing>> ring =
        StagingRing::create({.buffer_bytes = kBufferBytes, .pinner = &*pinner_});
    ASSERT_TRUE(ring.is_ok()) << ring.status().message();
    ring_ = std::move(ring).value();
    ASSERT_TRUE(ring_->is_pinned());
  }
  const DriverApi& api() { return driver_->api(); }
  bool all_buffers_are_free() {
    std::vector<StagingBuffer> buffers;
    while (const auto buffer = ring_->try_acquire()) buffers.push_back(*buffer);
    for (const StagingBuffer& buffer : buffers) ring_->release(buffer);
    return buffers.size() == StagingRingConfig().buffer_count;
  }

  std::optional<SimulatedDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<CurrentContext> context_;
  std::optional<StreamMarks> marks_;
  std::optional<CudaHostPinner> pinner_;
  std::vector<std::unique_ptr<DeviceBuffer>> device_;
  std::vector<std::unique_ptr<CopyStream>> streams_;
  std::unique_ptr<StagingRing> ring_;
};

// The last piece is not a whole buffer.
TEST_F(StagedCopiesTest, BytesAreTheSameBothWays) {
  start({.to_device_bytes_per_s = 256 * kMiB, .to_host_bytes_per_s = 256 * kMiB});
  const uint64_t bytes = kBytes - kBufferBytes / 2 - 8;
  std::vector<char> there(bytes);
  std::vector<char> back(bytes);
  stamp(there.data(), bytes, 5);
  {
    StagedCopies copies(*streams_[0], *ring_);
    ASSERT_TRUE(copies.to_device(device_[0]->address(), there.data(), bytes).is_ok());
    stamp(there.data(), bytes, 6);  // the memory may be reused
    ASSERT_TRUE(copies.to_host(back.data(), device_[0]->address(), bytes).is_ok());
  }
  EXPECT_TRUE(has_stamp(back.data(), bytes, 5));
  EXPECT_EQ(driver_->calls("cuMemcpyHtoDAsync"), 8u);
  EXPECT_EQ(driver_->calls("cuMemcpyDtoHAsync"), 8u);
  EXPECT_TRUE(all_buffers_are_free());
}

// While the device empties one buffer the next is filled, so a copy is still under way afterwards.
TEST_F(StagedCopiesTest, ToTheDeviceWaitsForBuffersOnly) {
  start();
  std::vector<char> there(2 * kBufferBytes);
  driver_->hold_copies();
  StagedCopies copies(*streams_[0], *ring_);
  EXPECT_TRUE(copies.to_device(device_[0]->address(), there.data(), there.size()).is_ok());
  EXPECT_EQ(driver_->calls("cuMemcpyHtoDAsync"), 2u);
  driver_->let_go();  // a call that waited for copies would not have returned
}

TEST_F(StagedCopiesTest, ThreadsShareTheBuffers) {
  constexpr size_t kThreads = 4;
  start({}, kThreads);
  std::vector<std::jthread> threads;
  for (size_t index = 0; index < kThreads; ++index) {
    threads.emplace_back([this, index] {
      std::vector<char> host(kBytes);
      for (uint64_t round = 0; round < 10; ++round) {
        StagedCopies copies(*streams_[index], *ring_);
        stamp(host.data(), kBytes, index * 100 + round);
        EXPECT_TRUE(copies.to_device(device_[index]->address(), host.data(), kBytes).is_ok());
        stamp(host.data(), kBytes, 9'999);
        EXPECT_TRUE(copies.to_host(host.data(), device_[index]->address(), kBytes).is_ok());
        EXPECT_TRUE(has_stamp(host.data(), kBytes, index * 100 + round));
      }
    });
  }
  threads.clear();
  EXPECT_TRUE(all_buffers_are_free());
}

TEST_F(StagedCopiesTest, RefusedCallsKeepNoBuffer) {
  for (const char* function : {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuEventRecord",
                               "cuEventSynchronize", "cuEventCreate"}) {
    for (uint64_t nth = 1; nth <= 3; ++nth) {
      SCOPED_TRACE(std::string(function) + " #" + std::to_string(nth));
      close();
      start();
      std::vector<char> host(kBytes);
      driver_->fail(function, nth, CUDA_ERROR_UNKNOWN);
      Status status;
      {
        StagedCopies copies(*streams_[0], *ring_);
        status = copies.to_device(device_[0]->address(), host.data(), kBytes);
        if (status.is_ok()) {
          status = copies.to_host(host.data(), device_[0]->address(), kBytes);
        }
      }
      // Events are reused, so few are made.
      const bool is_hit = driver_->calls(function) >= nth;
      EXPECT_EQ(status.is_ok(), !is_hit);
      EXPECT_TRUE(all_buffers_are_free());
    }
  }
}

// The driver pins the buffers and no block: every byte goes through them, and arrives right.
TEST(StagedEngineTest, UnpinnedBlocksAreCopiedThroughTheBuffers) {
  constexpr uint64_t kTensorBytes = 20 * kMiB;
  TestCudaEngine engine({}, {.registered_bytes_max = 33 * kMiB});  // a ring each way, hashes
  const CUstream stream = engine.make_stream();
  char* tensors[] = {engine.allocate(kTensorBytes, stream), engine.allocate(kTensorBytes, stream)};
  for (uint64_t index = 0; index < 2; ++index) {
    engine.write(stream, tensors[index], kTensorBytes, index);
    ASSERT_TRUE(engine.evict(tensors[index]));
    ASSERT_FALSE(engine.extent(tensors[index])->host_block.is_pinned);
  }
  EXPECT_EQ(engine.device().host()->stats().pinned_bytes, 0u);
  EXPECT_EQ(engine.driver().calls("cuMemcpyDtoHAsync"), 6u);  // 8 MiB each at most
  engine.op(stream, {{tensors[0], kTensorBytes, 0, false}, {tensors[1], kTensorBytes, 1, false}});
  engine.wait_until_idle();
  EXPECT_EQ(engine.driver().calls("cuMemcpyHtoDAsync"), 6u);
  for (char* tensor : tensors) engine.free(tensor);
  EXPECT_EQ(engine.check_books(), "");
}

// Where not even the buffers can be pinned, the driver's own are as good.
TEST(StagedEngineTest, WithoutPinnedMemoryTheDriverCopies) {
  TestCudaEngine engine({}, {.registered_bytes_max = 0});
  const CUstream stream = engine.make_stream();
  char* tensor = engine.allocate(20 * kMiB, stream);
  engine.write(stream, tensor, 20 * kMiB, 3);
  ASSERT_TRUE(engine.evict(tensor));
  EXPECT_EQ(engine.driver().calls("cuMemcpyDtoHAsync"), 1u);
  engine.check(stream, tensor, 20 * kMiB, 3);
  engine.wait_until_idle();
  engine.free(tensor);
}

}  // namespace
}  // namespace tencache
