// SPDX-License-Identifier: Apache-2.0
//
// DeviceHasher over the simulated driver, whose kernel is the text of the real one compiled for the
// host: hashes come in the stream's order and no thread waits for them; places are reused and run
// out; every refused call is a Status that leaves nothing behind; threads hash at once.
#include "platform/cuda/device_hasher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "platform/cuda/copy_stream.h"
#include "platform/cuda/stream_mark.h"
#include "support/child_process.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/hash_block.h"
#include "support/cuda/simulated_device_hash.h"
#include "support/cuda/simulated_driver.h"
#include "support/cuda/simulated_nvrtc.h"
#include "support/random.h"

namespace tencache {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 2 * kMiB;
constexpr DeviceHashSeeds kSeeds = {123456789, 987654321};

// Hashes by the host alone, in one block.
DeviceHash hash_on_host(const char* data, uint64_t bytes) {
  HashSums sums = {};
  HashJob job = make_hash_job(kSeeds);
  job.data = reinterpret_cast<const unsigned char*>(data);
  job.bytes = bytes;
  job.sums = &sums;
  run_hash_block(job, 0, 1);
  return finish_hash(kSeeds, bytes, {&sums, 1});
}

class DeviceHasherTest : public ::testing::Test {
 protected:
  ~DeviceHasherTest() override {
    if (!driver_.has_value()) return;
    hasher_.reset();
    device_.reset();
    if (stream_ != nullptr) api().cuStreamDestroy(stream_);
    marks_.reset();
    context_.reset();
    gpu_.reset();
    EXPECT_EQ(nvrtc_.leaks(), 0u);
    if (has_failed_) return;
    EXPECT_EQ(driver_->leaks(), "");
  }

  // Starts everything but the hasher.
  void start_driver(const SimulatedDriverConfig& config = {}) {
    driver_.emplace(config);
    add_hash_kernel(*driver_);
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(api(), 0);
    ASSERT_TRUE(gpu.is_ok()) << gpu.status().message();
    gpu_ = std::move(gpu).value();
    context_.emplace(api());
    marks_.emplace(*gpu_);
    device_.emplace(api(), kBytes);
    ASSERT_EQ(api().cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    Random().fill(device_->data(), kBytes);
  }
  void start(const SimulatedDriverConfig& config = {}) {
    start_driver(config);
    Result<std::unique_ptr<DeviceHasher>> hasher = create();
    ASSERT_TRUE(hasher.is_ok()) << hasher.status().message();
    hasher_ = std::move(hasher).value();
  }
  Result<std::unique_ptr<DeviceHasher>> create() {
    return DeviceHasher::create(*gpu_, nvrtc_.api(), kSeeds);
  }
  const DriverApi& api() { return driver_->api(); }
  PendingHash queue(uint64_t bytes = kBytes) {
    Result<PendingHash> pending = hasher_->hash(stream_, device_->address(), bytes);
    EXPECT_TRUE(pending.is_ok()) << pending.status().message();
    return std::move(pending).value();
  }
  StreamMark mark() {
    Result<StreamMark> mark = marks_->make(stream_);
    EXPECT_TRUE(mark.is_ok()) << mark.status().message();
    return std::move(mark).value();
  }

  SimulatedNvrtc nvrtc_;
  std::optional<SimulatedDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<CurrentContext> context_;
  std::optional<StreamMarks> marks_;
  std::optional<DeviceBuffer> device_;
  CUstream stream_ = nullptr;
  std::unique_ptr<DeviceHasher> hasher_;
  bool has_failed_ = false;  // the context has failed, and the driver takes nothing back
};

TEST_F(DeviceHasherTest, AHashIsThatOfTheBytesAndOfTheirLength) {
  start({.attributes = {{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 3}}});
  for (const uint64_t bytes : {kBytes, kBytes - 4, kMiB + 60, uint64_t{4}, uint64_t{0}}) {
    const PendingHash pending = queue(bytes);
    ASSERT_TRUE(mark().wait().is_ok());
    EXPECT_EQ(pending.value(), hash_on_host(device_->data(), bytes)) << bytes;
  }
}

TEST_F(DeviceHasherTest, AHashComesInTheOrderOfTheStreamAndNoThreadWaits) {
  start();
  driver_->hold(stream_);
  ASSERT_EQ(
      driver_->launch(stream_, {{device_->address(), kBytes}}, [this] { device_->data()[77] = 1; }),
      CUDA_SUCCESS);
  const PendingHash first = queue();
  ASSERT_EQ(
      driver_->launch(stream_, {{device_->address(), kBytes}}, [this] { device_->data()[77] = 2; }),
      CUDA_SUCCESS);
  const PendingHash second = queue();
  const StreamMark done = mark();
  EXPECT_FALSE(done.is_reached().value());
  driver_->let_go();
  ASSERT_TRUE(done.wait().is_ok());
  EXPECT_EQ(second.value(), hash_on_host(device_->data(), kBytes));
  device_->data()[77] = 1;
  EXPECT_EQ(first.value(), hash_on_host(device_->data(), kBytes));
  EXPECT_EQ(driver_->calls("cuStreamSynchronize"), 0u);
  EXPECT_EQ(driver_->calls("cuEventSynchronize"), 1u) << "the one that was asked for";
}

TEST_F(DeviceHasherTest, AHashTakesWhatTheMemoryTakes) {
  start({.kernel_bytes_per_s = 100 * kMiB});
  const auto begin = std::chrono::steady_clock::now();
  const PendingHash pending = queue();
  ASSERT_TRUE(mark().wait().is_ok());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(20));
}

TEST_F(DeviceHasherTest, AHashAllocatesNothingAndRegistersNothing) {
  start();
  const uint64_t launches = 3 * DeviceHasher::kPlaceCount;
  for (uint64_t round = 0; round < launches; ++round) {
    const PendingHash pending = queue(64);
    ASSERT_TRUE(mark().wait().is_ok());
  }
  EXPECT_EQ(driver_->calls("cuLaunchKernel"), launches);
  for (const char* once :
       {"cuMemHostRegister", "cuModuleLoadData", "cuModuleGetFunction", "cuMemCreate"}) {
    EXPECT_EQ(driver_->calls(once), 1u) << once;  // the one frame is the test's own
  }
  EXPECT_EQ(nvrtc_.calls("compile_program"), 1);
}

TEST_F(DeviceHasherTest, PlacesRunOutAndComeBack) {
  start();
  std::vector<PendingHash> pending;
  while (pending.size() < DeviceHasher::kPlaceCount) pending.push_back(queue());
  const Status none = hasher_->hash(stream_, device_->address(), kBytes).status();
  EXPECT_EQ(none.code(), StatusCode::kUnavailable);
  EXPECT_THAT(none.message(),
              HasSubstr(std::to_string(DeviceHasher::kPlaceCount) + " hashes under way"));
  ASSERT_TRUE(mark().wait().is_ok());
  const DeviceHash expected = hash_on_host(device_->data(), kBytes);
  for (const PendingHash& one : pending) EXPECT_EQ(one.value(), expected);
  pending.front() = std::move(pending.back());
  pending.pop_back();
  EXPECT_EQ(pending.front().value(), expected);
  pending.push_back(queue());
  EXPECT_FALSE(hasher_->hash(stream_, device_->address(), kBytes).is_ok());
  ASSERT_TRUE(mark().wait().is_ok());
}

TEST_F(DeviceHasherTest, EveryRefusedCallOfCreateIsAStatus) {
  start_driver();
  const auto expect_refused = [this](const char* name) {
    SCOPED_TRACE(name);
    const std::string before = driver_->leaks();
    const Result<std::unique_ptr<DeviceHasher>> refused = create();
    ASSERT_FALSE(refused.is_ok());
    EXPECT_FALSE(refused.status().message().empty());
    EXPECT_EQ(driver_->leaks(), before);
    EXPECT_EQ(nvrtc_.leaks(), 0u);
  };
  const struct {
    const char* name;
    uint64_t calls;  // that create() makes
  } driver_calls[] = {{"cuDeviceGetAttribute", 3}, {"cuCtxGetCurrent", 2},
                      {"cuModuleLoadData", 1},     {"cuModuleGetFunction", 1},
                      {"cuMemHostRegister", 1},    {"cuMemHostGetDevicePointer", 1}};
  for (const auto& [name, calls] : driver_calls) {
    for (uint64_t nth = 1; nth <= calls; ++nth) {
      driver_->fail(name, nth, CUDA_ERROR_UNKNOWN);
      expect_refused(name);
    }
  }
  // The first call of each scope fails; the second restores the mode, and its error is ignored.
  for (const uint64_t nth : {1, 3}) {
    driver_->fail("cuThreadExchangeStreamCaptureMode", nth, CUDA_ERROR_UNKNOWN);
    expect_refused("cuThreadExchangeStreamCaptureMode");
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    api().cuThreadExchangeStreamCaptureMode(&mode);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  }
  for (const char* name : {"create_program", "compile_program", "cubin_size", "cubin"}) {
    nvrtc_.fail(name, kNvrtcOutOfMemory);
    expect_refused(name);
  }
  EXPECT_TRUE(create().is_ok());
}

TEST_F(DeviceHasherTest, ARefusedHashGivesItsPlaceBack) {
  start();
  for (const char* name :
       {"cuLaunchKernel", "cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode"}) {
    for (unsigned round = 0; round < DeviceHasher::kPlaceCount; ++round) {
      driver_->fail(name, 1, CUDA_ERROR_UNKNOWN);
      const Status refused = hasher_->hash(stream_, device_->address(), kBytes).status();
      EXPECT_EQ(refused.code(), StatusCode::kIoError) << refused.message();
    }
  }
  const PendingHash pending = queue();
  ASSERT_TRUE(mark().wait().is_ok());
  EXPECT_EQ(pending.value(), hash_on_host(device_->data(), kBytes));
}

TEST_F(DeviceHasherTest, AGpuThatNvrtcDoesNotKnowHasNoHasher) {
  start_driver({.attributes = {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 13}}});
  const Status unknown = create().status();
  EXPECT_EQ(unknown.code(), StatusCode::kUnavailable);
  EXPECT_THAT(unknown.message(), HasSubstr("sm_130"));
}

TEST_F(DeviceHasherTest, AHashOfWhatIsNotMappedFailsTheContext) {
  start();
  {
    const PendingHash pending = queue();
    ASSERT_TRUE(mark().wait().is_ok());
  }
  ASSERT_EQ(device_->unmap(), CUDA_SUCCESS);
  const PendingHash pending = queue();
  driver_->wait_until_idle();
  EXPECT_FALSE(marks_->make(stream_).is_ok());
  EXPECT_FALSE(hasher_->hash(stream_, device_->address(), kBytes).is_ok());
  has_failed_ = true;
}

TEST_F(DeviceHasherTest, AForkedChildHashesNothing) {
  start();
  std::optional<PendingHash> pending = queue();
  ASSERT_TRUE(mark().wait().is_ok());
  EXPECT_EQ(run_in_child([&] {
              const uint64_t launches = driver_->calls("cuLaunchKernel");
              const Status refused = hasher_->hash(stream_, device_->address(), kBytes).status();
              EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
              EXPECT_THAT(refused.message(), HasSubstr("in a forked child"));
              EXPECT_FALSE(create().is_ok());
              testing::internal::CaptureStderr();
              hasher_.reset();
              pending.reset();
              EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
              EXPECT_EQ(driver_->calls("cuLaunchKernel"), launches);
              EXPECT_EQ(driver_->calls("cuModuleUnload"), 0u);
              EXPECT_EQ(driver_->calls("cuMemHostUnregister"), 0u);
            }),
            0);
  EXPECT_EQ(pending->value(), hash_on_host(device_->data(), kBytes));
}

// After a copy has left, an equal hash proves that the device still holds the same bytes, and a
// later write changes the hash.
TEST_F(DeviceHasherTest, AWriteAfterTheCopyShows) {
  start();
  PinnedBuffer host(api(), kBytes);
  Result<std::unique_ptr<CopyStream>> down = CopyStream::create(*gpu_, *marks_);
  ASSERT_TRUE(down.is_ok());
  const PendingHash at_copy = queue();
  ASSERT_TRUE(down.value()->wait_for(mark()).is_ok());
  ASSERT_TRUE(down.value()->to_host(host.data(), device_->address(), kBytes).is_ok());
  Result<StreamMark> copied = down.value()->mark();
  ASSERT_TRUE(copied.is_ok());
  ASSERT_TRUE(copied.value().hold_back(stream_).is_ok());
  const PendingHash unchanged = queue();
  ASSERT_EQ(driver_->launch(stream_, {{device_->address(), kBytes}},
                            [this] { ++device_->data()[kBytes - 1]; }),
            CUDA_SUCCESS);
  const PendingHash changed = queue();
  ASSERT_TRUE(mark().wait().is_ok());
  EXPECT_EQ(at_copy.value(), hash_on_host(host.data(), kBytes));
  EXPECT_EQ(unchanged.value(), at_copy.value());
  EXPECT_NE(changed.value(), at_copy.value());
}

TEST_F(DeviceHasherTest, ThreadsHashAtOnce) {
  start();
  const DeviceHash expected = hash_on_host(device_->data(), kMiB);
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([this, expected] {
      for (int round = 0; round < 10; ++round) {
        const PendingHash first = queue(kMiB);
        const PendingHash second = queue(kMiB);
        ASSERT_TRUE(mark().wait().is_ok());
        EXPECT_EQ(first.value(), expected);
        EXPECT_EQ(second.value(), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tencache
