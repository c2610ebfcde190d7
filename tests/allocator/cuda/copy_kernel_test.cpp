// SPDX-License-Identifier: Apache-2.0
//
// CopyKernel over the simulated driver, whose kernel is the text of the real one compiled for the
// host, and the engine's choice between it and the copy engines.
#include "platform/cuda/copy_kernel.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>

#include "base/units.h"
#include "platform/cuda/copy_stream.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_device_copy.h"
#include "support/cuda/simulated_driver.h"
#include "support/cuda/simulated_nvrtc.h"
#include "support/cuda/test_cuda_engine.h"
#include "support/random.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 2 * kMiB;
constexpr uint64_t kChunkBytes = kCopyChunkWords * sizeof(CopyWord);

class CopyKernelTest : public ::testing::Test {
 protected:
  ~CopyKernelTest() override {
    kernel_.reset();
    stream_.reset();
    host_.reset();
    device_.reset();
    marks_.reset();
    context_.reset();
    gpu_.reset();
    EXPECT_EQ(nvrtc_.leaks(), 0u);
    EXPECT_EQ(driver_->leaks(), "");
  }
  void start(const SimulatedDriverConfig& config = {}) {
    driver_.emplace(config);
    add_copy_kernel(*driver_);
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(driver_->api(), 0);
    ASSERT_TRUE(gpu.is_ok()) << gpu.status().message();
    gpu_ = std::move(gpu).value();
    context_.emplace(driver_->api());
    marks_.emplace(*gpu_);
    device_.emplace(driver_->api(), kBytes);
    host_.emplace(driver_->api(), kBytes);
    Result<std::unique_ptr<CopyStream>> stream = CopyStream::create(*gpu_, *marks_);
    ASSERT_TRUE(stream.is_ok()) << stream.status().message();
    stream_ = std::move(stream).value();
  }
  Status create() {
    Result<std::unique_ptr<CopyKernel>> kernel = CopyKernel::create(*gpu_, nvrtc_.api());
    if (kernel.is_ok()) kernel_ = std::move(kernel).value();
    return kernel.status();
  }

  SimulatedNvrtc nvrtc_;
  std::optional<SimulatedDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<CurrentContext> context_;
  std::optional<StreamMarks> marks_;
  std::optional<DeviceBuffer> device_;
  std::optional<PinnedBuffer> host_;
  std::unique_ptr<CopyStream> stream_;
  std::unique_ptr<CopyKernel> kernel_;
};

TEST_F(CopyKernelTest, EveryByteArrivesAndNoOther) {
  // 24 multiprocessors make several blocks, but fewer than there are chunks.
  start({.attributes = {{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 24}}});
  ASSERT_TRUE(create().is_ok());
  Random random;
  for (const uint64_t bytes : {uint64_t{16}, uint64_t{4080}, kChunkBytes - 16, kChunkBytes,
                               kChunkBytes + 16, 3 * kChunkBytes, 7 * kChunkBytes + 4096, kBytes}) {
    random.fill(device_->data(), kBytes);
    memset(host_->data(), 7, kBytes);
    ASSERT_TRUE(
        kernel_->to_host(stream_->handle(), host_->data(), device_->address(), bytes).is_ok());
    ASSERT_TRUE(stream_->wait_until_idle().is_ok());
    EXPECT_EQ(memcmp(host_->data(), device_->data(), bytes), 0) << bytes;
    for (uint64_t rest = bytes; rest < kBytes; ++rest) ASSERT_EQ(host_->data()[rest], 7) << rest;
    random.fill(host_->data(), kBytes);
    memset(device_->data(), 9, kBytes);
    ASSERT_TRUE(
        kernel_->to_device(stream_->handle(), device_->address(), host_->data(), bytes).is_ok());
    ASSERT_TRUE(stream_->wait_until_idle().is_ok());
    EXPECT_EQ(memcmp(host_->data(), device_->data(), bytes), 0) << bytes;
    for (uint64_t rest = bytes; rest < kBytes; ++rest) ASSERT_EQ(device_->data()[rest], 9) << rest;
  }
  EXPECT_EQ(driver_->calls("cuMemcpyDtoHAsync") + driver_->calls("cuMemcpyHtoDAsync"), 0u);
}

TEST_F(CopyKernelTest, AGpuWithOtherAddressesOfHostMemoryHasNone) {
  start({.attributes = {{CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0}}});
  const Status status = create();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("other addresses"), std::string::npos) << status.message();
}

TEST_F(CopyKernelTest, RefusedCallsAreStatuses) {
  start();
  for (const char* function : {"cuDeviceGetAttribute", "cuModuleLoadData", "cuModuleGetFunction"}) {
    driver_->fail(function, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(create().code(), StatusCode::kIoError) << function;
  }
  ASSERT_TRUE(create().is_ok());
  driver_->fail("cuLaunchKernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  const Status status =
      kernel_->to_host(stream_->handle(), host_->data(), device_->address(), kBytes);
  EXPECT_NE(status.message().find("kernel that copies"), std::string::npos) << status.message();
}

// ---- The engine's choice -----------------------------------------------------------------------

struct Choice {
  uint64_t engine_copies = 0;  // by one eviction and one fetch
  uint64_t launches = 0;
};

Choice chosen_by(SimulatedDriverConfig driver, bool has_nvrtc = true) {
  TestCudaEngine engine(
      [&](CudaEngineConfig& config) {
        config.probe_bytes = kBytes;
        if (!has_nvrtc) config.nvrtc.reset();
      },
      driver, true);
  CUstream stream = engine.make_stream();
  char* address = engine.allocate(kBytes, stream);
  engine.write(stream, address, kBytes, 3);
  engine.wait_until_idle();
  const auto count = [&] {
    const SimulatedDriver& calls = engine.driver();
    return Choice{calls.calls("cuMemcpyDtoHAsync") + calls.calls("cuMemcpyHtoDAsync"),
                  calls.calls("cuLaunchKernel")};
  };
  const Choice before = count();
  EXPECT_TRUE(engine.evict(address));
  engine.check(stream, address, kBytes, 3);
  engine.wait_until_idle();
  const Choice after = count();
  engine.free(address);
  return {after.engine_copies - before.engine_copies, after.launches - before.launches};
}

constexpr uint64_t kSlow = 20 * kMiB;  // bytes a second; much slower than a host under a sanitizer
constexpr uint64_t kHashes = 2;        // in an eviction that copies

TEST(CopyChoiceTest, AKernelThatIsFasterCopies) {
  const Choice choice = chosen_by({.to_device_bytes_per_s = kSlow, .to_host_bytes_per_s = kSlow});
  EXPECT_EQ(choice.engine_copies, 0u);
  EXPECT_EQ(choice.launches, kHashes + 2);
}

TEST(CopyChoiceTest, AKernelThatIsSlowerDoesNot) {
  const Choice choice = chosen_by({.kernel_bytes_per_s = kSlow});
  EXPECT_EQ(choice.engine_copies, 2u);
  EXPECT_EQ(choice.launches, kHashes);
}

TEST(CopyChoiceTest, EachDirectionHasItsOwn) {
  const Choice choice =
      chosen_by({.to_device_bytes_per_s = kSlow / 8, .kernel_bytes_per_s = kSlow});
  EXPECT_EQ(choice.engine_copies, 1u);
  EXPECT_EQ(choice.launches, kHashes + 1);
}

TEST(CopyChoiceTest, WithoutACompilerTheEnginesCopy) {
  const Choice choice =
      chosen_by({.to_device_bytes_per_s = kSlow, .to_host_bytes_per_s = kSlow}, false);
  EXPECT_EQ(choice.engine_copies, 2u);
  EXPECT_EQ(choice.launches, 0u);
}

TEST(CopyChoiceTest, ARefusedKernelLosesNothing) {
  TestCudaEngine engine([](CudaEngineConfig& config) { config.probe_bytes = kBytes; },
                        {.to_device_bytes_per_s = kSlow, .to_host_bytes_per_s = kSlow}, true);
  CUstream stream = engine.make_stream();
  char* address = engine.allocate(kBytes, stream);
  for (uint64_t nth = 1; nth <= kHashes + 2; ++nth) {
    engine.write(stream, address, kBytes, nth);
    engine.wait_until_idle();
    engine.driver().fail("cuLaunchKernel", nth, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    const bool has_left = engine.evict(address);
    EXPECT_EQ(has_left, nth > kHashes + 1) << nth;
    engine.check(stream, address, kBytes, nth);
    engine.wait_until_idle();
    EXPECT_EQ(engine.check_books(), "");
  }
  EXPECT_EQ(engine.stats().eviction_failures.load(), kHashes + 1);
  engine.free(address);
}

}  // namespace
}  // namespace tencache
