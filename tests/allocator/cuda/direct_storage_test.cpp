// SPDX-License-Identifier: Apache-2.0
//
// From disk straight to the GPU, over a simulated cuFile, the simulated driver and a real file: the
// bytes arrive as written, and wherever that way is closed, host memory serves instead.
#include "platform/cuda/direct_storage.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "support/aligned_buffer.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_cufile.h"
#include "support/cuda/simulated_driver.h"
#include "support/cuda/spill_fixture.h"
#include "support/random.h"
#include "support/test_directory.h"

#if __has_include(<cufile.h>)
#include <cufile.h>
#endif

namespace tencache {
namespace {

using ::testing::HasSubstr;

#if __has_include(<cufile.h>)
// Our types have the layout of the header's.
static_assert(sizeof(CuFileError) == sizeof(CUfileError_t));
static_assert(offsetof(CuFileError, driver) == offsetof(CUfileError_t, cu_err));
static_assert(sizeof(CuFileDescription) == sizeof(CUfileDescr_t));
static_assert(offsetof(CuFileDescription, handle) == offsetof(CUfileDescr_t, handle));
static_assert(CU_FILE_HANDLE_TYPE_OPAQUE_FD == 1);
static_assert(sizeof(CuFileProperties) == sizeof(CUfileDrvProps_t));
static_assert(offsetof(CuFileProperties, supported) ==
              offsetof(CUfileDrvProps_t, nvfs) +
                  offsetof(decltype(CUfileDrvProps_t::nvfs), dstatusflags));
#endif

constexpr uint64_t kFileBytes = 40 * kMiB;

class DirectStorageTest : public ::testing::Test {
 protected:
  DirectStorageTest() {
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(driver_.api(), 0);
    EXPECT_TRUE(gpu.is_ok());
    gpu_ = std::move(gpu).value();
    context_.emplace(driver_.api());
    marks_.emplace(*gpu_);
    device_.emplace(driver_.api(), kFileBytes);
    EXPECT_EQ(driver_.api().cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
              CUDA_SUCCESS);
    contents_.resize(kFileBytes);
    Random().fill(contents_.data(), contents_.size());
    file_ = open((directory_.path() + "/file").c_str(), O_RDWR | O_CREAT, 0600);
    EXPECT_EQ(write(file_, contents_.data(), contents_.size()),
              static_cast<ssize_t>(contents_.size()));
  }
  ~DirectStorageTest() override {
    storage_.reset();
    EXPECT_EQ(cufile_.leaks(), 0u);
    driver_.api().cuStreamDestroy(stream_);
    device_.reset();
    marks_.reset();
    context_.reset();
    gpu_.reset();
    EXPECT_EQ(driver_.leaks(), "");
    close(file_);
  }
  Status open_storage() {
    Result<std::unique_ptr<DirectStorage>> storage =
        DirectStorage::open(*gpu_, *marks_, cufile_.api(), file_);
    if (storage.is_ok()) storage_ = std::move(storage).value();
    return storage.status();
  }
  bool is_there(uint64_t place, uint64_t bytes, uint64_t offset) {
    return memcmp(device_->data() + place, contents_.data() + offset, bytes) == 0;
  }

  TestDirectory directory_;
  SimulatedDriver driver_;
  SimulatedCuFile cufile_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<CurrentContext> context_;
  std::optional<StreamMarks> marks_;
  std::optional<DeviceBuffer> device_;
  CUstream stream_ = nullptr;
  std::vector<char> contents_;
  int file_ = -1;
  std::unique_ptr<DirectStorage> storage_;
};

TEST_F(DirectStorageTest, WhatWasReadIsThereWhenTheCallReturns) {
  ASSERT_TRUE(open_storage().is_ok());
  for (const uint64_t bytes :
       {uint64_t{4096}, DirectStorage::kBufferBytes, 2 * DirectStorage::kBufferBytes + 4096}) {
    memset(device_->data(), 0, kFileBytes);
    const Status status = storage_->read(stream_, device_->address() + 4096, bytes, 8192);
    ASSERT_TRUE(status.is_ok()) << status.message();
    EXPECT_TRUE(is_there(4096, bytes, 8192)) << bytes;
    EXPECT_EQ(device_->data()[4096 + bytes], 0);
  }
  EXPECT_EQ(cufile_.calls("read"), 1u + 1u + 3u);
}

TEST_F(DirectStorageTest, ThreadsReadSideBySide) {
  ASSERT_TRUE(open_storage().is_ok());
  constexpr uint64_t kPart = 4 * kMiB;
  std::vector<std::thread> threads;
  for (uint64_t index = 0; index < 8; ++index) {
    threads.emplace_back([&, index] {
      const Status status =
          storage_->read(stream_, device_->address() + index * kPart, kPart, index * kPart);
      EXPECT_TRUE(status.is_ok()) << status.message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(is_there(0, 8 * kPart, 0));
}

TEST_F(DirectStorageTest, RefusalsAreStatusesAndLeaveNothing) {
  for (const char* name : {"open_driver", "get_properties", "register_handle", "register_buffer"}) {
    cufile_.fail(name, name == std::string("register_buffer") ? 3 : 1);
    const Status status = open_storage();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << name;
    EXPECT_THAT(status.message(), HasSubstr("5001")) << name;
    EXPECT_EQ(cufile_.leaks(), 0u) << name;
  }
  driver_.fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(open_storage().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(cufile_.leaks(), 0u);
}

TEST_F(DirectStorageTest, AReadThatFailsSaysSoAndTheNextOneIsRight) {
  ASSERT_TRUE(open_storage().is_ok());
  cufile_.fail("read", 2);
  const uint64_t bytes = 3 * DirectStorage::kBufferBytes;
  const Status failed = storage_->read(stream_, device_->address(), bytes, 0);
  EXPECT_EQ(failed.code(), StatusCode::kIoError);
  EXPECT_THAT(failed.message(), HasSubstr("cuFile read -5 of 8388608 bytes at 8388608"));
  driver_.fail("cuMemcpyDtoDAsync", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(storage_->read(stream_, device_->address(), bytes, 0).is_ok());
  driver_.fail("cuEventRecord", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(storage_->read(stream_, device_->address(), bytes, 0).is_ok());
  ASSERT_TRUE(storage_->read(stream_, device_->address(), bytes, 0).is_ok());
  EXPECT_TRUE(is_there(0, bytes, 0));
}

TEST_F(DirectStorageTest, TheEndOfTheFileIsAnError) {
  ASSERT_TRUE(open_storage().is_ok());
  EXPECT_EQ(storage_->read(stream_, device_->address(), kMiB, kFileBytes - 4096).code(),
            StatusCode::kIoError);
}

TEST(DirectStorageSupportTest, AMachineThatOnlyCopiesByHostMemoryIsToldApart) {
  SimulatedDriver driver;
  SimulatedCuFile cufile(0);
  Result<std::unique_ptr<Gpu>> gpu = Gpu::open(driver.api(), 0);
  StreamMarks marks(*gpu.value());
  const Status status = DirectStorage::open(*gpu.value(), marks, cufile.api(), 0).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("nvidia-fs"));
}

// ---- In an engine --------------------------------------------------------------------------

class DirectFetchTest : public SpillFixture {
 protected:
  static constexpr uint64_t kDiskTensors = 4;

  ~DirectFetchTest() override {
    stop();
    EXPECT_EQ(cufile_.leaks(), 0u);
  }
  /// Starts with everything cold; the first `kDiskTensors` are on disk alone.
  void start_cold(const TestCudaEngine::Adjust& adjust = {}) {
    start([&](CudaEngineConfig& config) {
      config.cufile = cufile_.api();
      if (adjust) adjust(config);
    });
    allocate(kDiskTensors + kHostTensors);
    engine_->wait_until_idle();
    evict(tensors_.size());
    for (uint64_t index = 0; index < tensors_.size(); ++index) {
      EXPECT_EQ(is_on_disk_alone(index), index < kDiskTensors) << index;
    }
  }

  SimulatedCuFile cufile_;
};

TEST_F(DirectFetchTest, WhatTheDiskAloneHasNeedsNoHostMemory) {
  start_cold();
  const uint64_t host_bytes = engine_->device().host()->stats().asked_bytes;
  for (uint64_t index = 0; index < kDiskTensors; ++index) check(index);
  EXPECT_EQ(cufile_.calls("read"), kDiskTensors);
  EXPECT_EQ(engine_->device().host()->stats().asked_bytes, host_bytes);
  EXPECT_EQ(engine_->stats().disk_read_bytes, kDiskTensors * kBytes);
  check_all();
  EXPECT_EQ(cufile_.calls("read"), kDiskTensors) << "the rest was in host memory";
}

TEST_F(DirectFetchTest, AheadOfUseTooAndItsSlotIsASpareCopy) {
  start_cold();
  EXPECT_EQ(engine_->prefetch({tensors_[0], tensors_[1]}), 2u);
  (*engine_)->mover()->settle(true);
  EXPECT_EQ(engine_->state(tensors_[0]), ExtentState::kResident);
  check(0);
  EXPECT_EQ(engine_->stats().early_fetches, 1u);
  // The tensor was only read, so it leaves without a copy and without a write.
  const uint64_t written_bytes = engine_->stats().disk_written_bytes;
  ASSERT_TRUE(engine_->evict(tensors_[0]));
  EXPECT_EQ(engine_->stats().disk_written_bytes, written_bytes);
  check_all();
}

TEST_F(DirectFetchTest, AFailedReadComesByHostMemoryAsDoesAllThatFollows) {
  start_cold();
  cufile_.fail("read");
  check_all();
  EXPECT_EQ(cufile_.calls("read"), 1u);
  EXPECT_EQ(engine_->stats().eviction_failures, 0u);
}

TEST_F(DirectFetchTest, BytesThatAreNotThoseThatLeftComeAgain) {
  start_cold();
  cufile_.lie_once();
  check_all();
  EXPECT_EQ(cufile_.calls("read"), 1u);
}

class DirectFetchFaultTest : public DirectFetchTest,
                             public ::testing::WithParamInterface<const char*> {};

TEST_P(DirectFetchFaultTest, ARefusalOfTheDriverLosesNothing) {
  start_cold();
  engine_->driver().fail(GetParam(), 1, CUDA_ERROR_UNKNOWN);
  check_all();
  EXPECT_GE(cufile_.calls("read"), 1u);
}
INSTANTIATE_TEST_SUITE_P(Calls, DirectFetchFaultTest,
                         ::testing::Values("cuMemMap", "cuMemcpyDtoDAsync", "cuLaunchKernel",
                                           "cuEventRecord", "cuEventSynchronize"));

TEST_F(DirectFetchTest, WithoutAHashNothingIsProvedSoNothingIsReadDirectly) {
  start_cold([](CudaEngineConfig& config) { config.nvrtc.reset(); });
  check_all();
  EXPECT_EQ(cufile_.calls("read"), 0u);
}

TEST_F(DirectFetchTest, WithoutDirectIoHostMemoryIsOnTheWay) {
  start_cold([](CudaEngineConfig& config) { config.disk->direct_io = Choice::kOff; });
  check_all();
  EXPECT_EQ(cufile_.calls("open_driver"), 0u);
}

}  // namespace
}  // namespace tencache
