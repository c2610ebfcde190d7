// SPDX-License-Identifier: Apache-2.0
//
// Gpu and DeviceArena: a GPU's features are found, frames are mapped under fixed addresses, access
// is granted once for neighbours, and a call that the driver refuses leaves nothing mapped.
#include "platform/cuda/device_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "support/cuda/simulated_driver.h"

namespace tencache {
namespace {

constexpr uint64_t kUnit = 2 * kMiB;

class DeviceArenaTest : public ::testing::Test {
 protected:
  explicit DeviceArenaTest(const SimulatedDriverConfig& config = {}) : driver_(config) {
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(driver_.api(), 0);
    EXPECT_TRUE(gpu.is_ok()) << gpu.status().message();
    gpu_ = std::move(gpu).value();
    pool_.emplace(*gpu_, 64 * kMiB);
    Result<std::unique_ptr<DeviceArena>> arena = DeviceArena::reserve(*gpu_, 64 * kMiB + 1);
    EXPECT_TRUE(arena.is_ok()) << arena.status().message();
    arena_ = std::move(arena).value();
  }
  ~DeviceArenaTest() override {
    for (const FramePlace& place : mapped_) {
      EXPECT_TRUE(arena_->unmap(place.address, place.frame.bytes).is_ok());
    }
    for (const Frame& frame : taken_) pool_->give_back(frame);
    arena_.reset();
    pool_.reset();
    gpu_.reset();
    EXPECT_EQ(driver_.leaks(), "");
  }

  FramePlace place(uint64_t offset, uint64_t bytes) {
    const Result<Frame> frame = pool_->take(bytes);
    EXPECT_TRUE(frame.is_ok()) << frame.status().message();
    taken_.push_back(frame.value());
    return {arena_->base() + offset, frame.value()};
  }
  // Expects that what is written to the place can be read back.
  static void expect_usable(const FramePlace& place, char value) {
    char* data = reinterpret_cast<char*>(place.address);
    memset(data, value, place.frame.bytes);
    EXPECT_EQ(data[place.frame.bytes - 1], value);
  }

  SimulatedDriver driver_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<FramePool> pool_;
  std::unique_ptr<DeviceArena> arena_;
  std::vector<Frame> taken_;
  std::vector<FramePlace> mapped_;
};

TEST_F(DeviceArenaTest, AddressesAreReservedWithoutMemory) {
  EXPECT_EQ(arena_->bytes(), 66 * kMiB);
  EXPECT_EQ(arena_->base() % kUnit, 0u);
  EXPECT_TRUE(arena_->contains(arena_->base() + arena_->bytes() - 1));
  EXPECT_FALSE(arena_->contains(arena_->base() + arena_->bytes()));
  EXPECT_FALSE(arena_->contains(arena_->base() - 1));
  EXPECT_EQ(driver_.calls("cuMemCreate"), 0u);
}

TEST_F(DeviceArenaTest, NeighboursAreGrantedAccessTogether) {
  mapped_ = {place(0, kUnit), place(kUnit, 3 * kUnit), place(8 * kUnit, kUnit)};
  ASSERT_TRUE(arena_->map(mapped_).is_ok());
  EXPECT_EQ(driver_.calls("cuMemMap"), 4u) << "one for each handle";
  EXPECT_EQ(driver_.calls("cuMemSetAccess"), 2u) << "one for each run of addresses";
  for (const FramePlace& mapped : mapped_) expect_usable(mapped, 7);
}

// A frame of several handles is one range: one call grants access to all of it, and one unmaps it.
TEST_F(DeviceArenaTest, HandlesOfAFrameLieOneBehindAnother) {
  const FramePlace there = place(2 * kUnit, 7 * kUnit);
  ASSERT_EQ(there.frame.handles.size(), 3u);
  ASSERT_TRUE(arena_->map({&there, 1}).is_ok());
  EXPECT_EQ(driver_.calls("cuMemMap"), 3u);
  EXPECT_EQ(driver_.calls("cuMemSetAccess"), 1u);
  expect_usable(there, 7);
  ASSERT_TRUE(arena_->unmap(there.address, there.frame.bytes).is_ok());
  EXPECT_EQ(driver_.calls("cuMemUnmap"), 1u);
}

TEST_F(DeviceArenaTest, AFrameKeepsItsBytesUnderAnotherAddress) {
  FramePlace there = place(0, kUnit);
  ASSERT_TRUE(arena_->map({&there, 1}).is_ok());
  expect_usable(there, 42);
  ASSERT_TRUE(arena_->unmap(there.address, kUnit).is_ok());
  there.address += 4 * kUnit;
  ASSERT_TRUE(arena_->map({&there, 1}).is_ok());
  EXPECT_EQ(*reinterpret_cast<char*>(there.address), 42);
  mapped_ = {there};
}

TEST_F(DeviceArenaTest, AllOfTheFramesAreMappedOrNone) {
  const std::vector<FramePlace> places = {place(0, kUnit), place(kUnit, 3 * kUnit),
                                          place(5 * kUnit, kUnit)};
  const struct {
    const char* name;
    uint64_t nth;
  } refusals[] = {{"cuCtxGetCurrent", 1}, {"cuMemMap", 1},       {"cuMemMap", 3},
                  {"cuMemMap", 4},        {"cuMemSetAccess", 1}, {"cuMemSetAccess", 2}};
  for (const auto& refusal : refusals) {
    SCOPED_TRACE(std::string(refusal.name) + " " + std::to_string(refusal.nth));
    driver_.fail(refusal.name, refusal.nth, CUDA_ERROR_UNKNOWN);
    const Status status = arena_->map(places);
    ASSERT_FALSE(status.is_ok());
    EXPECT_NE(status.message().find("CUDA_ERROR_UNKNOWN"), std::string::npos);
  }
  // Nothing was left behind, so mapping succeeds now.
  EXPECT_TRUE(arena_->map(places).is_ok());
  mapped_ = places;
}

TEST_F(DeviceArenaTest, AThreadKeepsItsOwnContextAndCaptureMode) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  driver_.api().cuThreadExchangeStreamCaptureMode(&mode);
  mapped_ = {place(0, kUnit)};
  ASSERT_TRUE(arena_->map(mapped_).is_ok());
  CUcontext context = nullptr;
  EXPECT_EQ(driver_.api().cuCtxGetCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(context, nullptr) << "this thread had none";
  driver_.api().cuThreadExchangeStreamCaptureMode(&mode);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

class PeersTest : public DeviceArenaTest {
 protected:
  PeersTest() : DeviceArenaTest({.device_count = 2, .has_peers = true}) {
    EXPECT_EQ(driver_.api().cuDevicePrimaryCtxRetain(&peer_, 1), CUDA_SUCCESS);
    EXPECT_EQ(driver_.api().cuCtxSetCurrent(peer_), CUDA_SUCCESS);
    EXPECT_EQ(driver_.api().cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
              CUDA_SUCCESS);
  }
  ~PeersTest() override {
    EXPECT_EQ(driver_.api().cuStreamDestroy(stream_), CUDA_SUCCESS);
    EXPECT_EQ(driver_.api().cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(driver_.api().cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  }

  // Launches a kernel of the other device that writes to the place, and waits for it.
  CUresult write_from_peer(const FramePlace& place) {
    const CUresult result =
        driver_.launch(stream_, {{place.address, place.frame.bytes, true}}, [] {});
    return result == CUDA_SUCCESS ? driver_.api().cuStreamSynchronize(stream_) : result;
  }

  CUcontext peer_ = nullptr;
  CUstream stream_ = nullptr;
};

TEST_F(PeersTest, APeerUsesWhatIsMappedBeforeAndAfterwards) {
  mapped_ = {place(0, kUnit), place(kUnit, 3 * kUnit), place(8 * kUnit, kUnit)};
  ASSERT_TRUE(arena_->map(mapped_).is_ok());
  const uint64_t calls = driver_.calls("cuMemSetAccess");
  ASSERT_TRUE(arena_->add_peer(1).is_ok());
  EXPECT_EQ(driver_.calls("cuMemSetAccess"), calls + 2) << "one for each run of addresses";
  const FramePlace later = place(10 * kUnit, kUnit);
  ASSERT_TRUE(arena_->map({&later, 1}).is_ok());
  mapped_.push_back(later);
  for (const FramePlace& mapped : mapped_) {
    EXPECT_EQ(write_from_peer(mapped), CUDA_SUCCESS) << mapped.address;
    expect_usable(mapped, 7);
  }
}

TEST_F(PeersTest, WhatIsUnmappedIsNotGranted) {
  mapped_ = {place(0, kUnit), place(kUnit, kUnit)};
  ASSERT_TRUE(arena_->map(mapped_).is_ok());
  ASSERT_TRUE(arena_->unmap(mapped_[0].address, kUnit).is_ok());
  EXPECT_TRUE(arena_->add_peer(1).is_ok()) << "the driver refuses addresses without memory";
  EXPECT_EQ(write_from_peer(mapped_[1]), CUDA_SUCCESS);
  mapped_.erase(mapped_.begin());
}

TEST_F(DeviceArenaTest, ADeviceThatIsNoPeerIsRefused) {
  mapped_ = {place(0, kUnit)};
  ASSERT_TRUE(arena_->map(mapped_).is_ok());
  EXPECT_FALSE(arena_->add_peer(1).is_ok());
  mapped_.push_back(place(kUnit, kUnit));
  EXPECT_TRUE(arena_->map({&mapped_.back(), 1}).is_ok()) << "nothing has changed";
}

TEST(GpuTest, TellsWhatTheGpuOffers) {
  SimulatedDriver driver({.device_count = 2, .device_name = "Test GPU", .host_numa_id = 1});
  Result<std::unique_ptr<Gpu>> gpu = Gpu::open(driver.api(), 1);
  ASSERT_TRUE(gpu.is_ok()) << gpu.status().message();
  const GpuFacts& facts = gpu.value()->facts();
  EXPECT_EQ(facts.name, "Test GPU");
  EXPECT_EQ(facts.granularity_bytes, kUnit);
  EXPECT_EQ(facts.numa_node, 1);
  EXPECT_GT(facts.total_bytes, 0u);
  EXPECT_EQ(frame_properties(gpu.value()->device(), facts).location.id, 1);
  gpu.value().reset();
  EXPECT_EQ(driver.leaks(), "");
}

TEST(GpuTest, AContextHasFailedOnlyIfItRefusesTwice) {
  SimulatedDriver driver;
  const Result<std::unique_ptr<Gpu>> gpu = Gpu::open(driver.api(), 0);
  ASSERT_TRUE(gpu.is_ok()) << gpu.status().message();
  for (const char* name : {"cuMemGetInfo", "cuCtxGetCurrent"}) {
    driver.fail(name, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_TRUE(gpu.value()->status().is_ok()) << name;
  }
  driver.fail_context(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_NE(gpu.value()->status().message().find("has failed: CUDA_ERROR_ILLEGAL_ADDRESS"),
            std::string::npos);
}

TEST(GpuTest, WhatCannotBeUsedIsRefusedWithTheReason) {
  SimulatedDriver driver(
      {.attributes = {{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0}}});
  const Result<std::unique_ptr<Gpu>> none = Gpu::open(driver.api(), 3);
  ASSERT_FALSE(none.is_ok());
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(none.status().message().find("There is no GPU 3"), std::string::npos);
  const Result<std::unique_ptr<Gpu>> old = Gpu::open(driver.api(), 0);
  ASSERT_FALSE(old.is_ok());
  EXPECT_EQ(old.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(old.status().message().find("virtual memory management"), std::string::npos);
  EXPECT_EQ(driver.leaks(), "") << "its context was given up";
}

TEST(GpuTest, EveryRefusedCallIsAStatus) {
  for (const char* name :
       {"cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuDeviceGetName",
        "cuDeviceTotalMem", "cuDeviceGetAttribute", "cuMemGetAllocationGranularity"}) {
    SCOPED_TRACE(name);
    SimulatedDriver driver;
    driver.fail(name, 1, CUDA_ERROR_UNKNOWN);
    const Result<std::unique_ptr<Gpu>> gpu = Gpu::open(driver.api(), 0);
    ASSERT_FALSE(gpu.is_ok());
    EXPECT_NE(gpu.status().message().find("CUDA_ERROR_UNKNOWN"), std::string::npos);
    EXPECT_EQ(driver.leaks(), "");
  }
}

}  // namespace
}  // namespace tencache
