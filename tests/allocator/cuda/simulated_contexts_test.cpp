// SPDX-License-Identifier: Apache-2.0
//
// What belongs to one device of the simulated driver, as to one of the real driver: streams,
// events, kernels, and access to memory. Each test has two devices and a current context; what it
// does with the wrong device is refused or fails the context.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver_parts.h"

namespace tencache {
namespace {

constexpr uint64_t kGranule = 2 * kMiB;

CUmemLocation on(int device) { return {CU_MEM_LOCATION_TYPE_DEVICE, device}; }

class SimulatedContextsTest : public ::testing::Test {
 protected:
  SimulatedContextsTest() {
    for (const int device : {0, 1}) {
      EXPECT_EQ(api_.cuDevicePrimaryCtxRetain(&contexts_[device], device), CUDA_SUCCESS);
      use(device);
      EXPECT_EQ(api_.cuStreamCreateWithPriority(&streams_[device], CU_STREAM_NON_BLOCKING, 0),
                CUDA_SUCCESS);
      EXPECT_EQ(api_.cuEventCreate(&events_[device], CU_EVENT_DEFAULT), CUDA_SUCCESS);
    }
    use(0);
  }
  ~SimulatedContextsTest() override { EXPECT_EQ(api_.cuCtxSetCurrent(nullptr), CUDA_SUCCESS); }

  // Makes the device's context current.
  void use(int device) { EXPECT_EQ(api_.cuCtxSetCurrent(contexts_[device]), CUDA_SUCCESS); }
  // Launches a kernel of the device that reads the bytes, and waits for it.
  CUresult read(int device, CUdeviceptr address, uint64_t bytes) {
    use(device);
    const CUresult result = driver_.launch(streams_[device], {{address, bytes, false}}, [] {});
    return result == CUDA_SUCCESS ? api_.cuStreamSynchronize(streams_[device]) : result;
  }

  SimulatedDriver driver_{{.device_count = 2}};
  const DriverApi& api_ = driver_.api();
  std::array<CUcontext, 2> contexts_ = {};
  std::array<CUstream, 2> streams_ = {};
  std::array<CUevent, 2> events_ = {};
};

TEST_F(SimulatedContextsTest, AnEventIsRecordedInStreamsOfItsDevice) {
  EXPECT_EQ(api_.cuEventRecord(events_[0], streams_[1]), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(api_.cuEventRecord(events_[1], nullptr), CUDA_ERROR_INVALID_HANDLE)
      << "the NULL stream is the current device's";
  for (const int device : {0, 1}) {
    EXPECT_EQ(api_.cuEventRecord(events_[device], streams_[device]), CUDA_SUCCESS)
        << "whatever is current";
  }
  EXPECT_EQ(api_.cuStreamWaitEvent(streams_[0], events_[1], 0), CUDA_SUCCESS) << "any may wait";
  EXPECT_EQ(api_.cuEventSynchronize(events_[1]), CUDA_SUCCESS);
  float elapsed = 0;
  EXPECT_EQ(api_.cuEventElapsedTime(&elapsed, events_[0], events_[1]), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(SimulatedContextsTest, AKernelGoesIntoStreamsOfTheCurrentDeviceThatItWasLoadedFor) {
  driver_.add_kernel("nothing",
                     {.parameter_bytes = {},
                      .ranges = [](const SimulatedLaunch&) { return SimulatedKernel::Ranges{}; },
                      .run = [](const SimulatedLaunch&) {}});
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(api_.cuModuleLoadData(&module, simulated_image(90, {"nothing"}).c_str()), CUDA_SUCCESS);
  use(1);
  ASSERT_EQ(api_.cuModuleGetFunction(&function, module, "nothing"), CUDA_SUCCESS);
  const auto launch = [&](CUstream stream) {
    return api_.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  };
  EXPECT_EQ(launch(streams_[1]), CUDA_ERROR_INVALID_HANDLE) << "loaded in the other context";
  EXPECT_EQ(launch(streams_[0]), CUDA_ERROR_INVALID_HANDLE);
  use(0);
  EXPECT_EQ(launch(streams_[1]), CUDA_ERROR_INVALID_HANDLE) << "a stream of the other device";
  EXPECT_EQ(launch(streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(SimulatedContextsTest, ADeviceGetsNoAccessToTheMemoryOfAnother) {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = on(0);
  ASSERT_EQ(api_.cuMemAddressReserve(&address, kGranule, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(api_.cuMemCreate(&handle, kGranule, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(api_.cuMemMap(address, kGranule, 0, handle, 0), CUDA_SUCCESS);
  const auto allow = [&](int device) {
    const CUmemAccessDesc access = {on(device), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return api_.cuMemSetAccess(address, kGranule, &access, 1);
  };
  EXPECT_EQ(allow(1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(api_.cuMemsetD8Async(address, 1, kGranule, streams_[0]), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(allow(0), CUDA_SUCCESS);
  EXPECT_EQ(read(0, address, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemsetD8Async(address, 1, kGranule, streams_[1]), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api_.cuStreamWriteValue64(streams_[1], address, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(read(1, address, kGranule), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(SimulatedContextsTest, AccessToHostMemoryIsADevicesOwn) {
  const DeviceBuffer shared(api_, kGranule, {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0});
  EXPECT_EQ(read(0, shared.address(), kGranule), CUDA_SUCCESS);
  const CUmemAccessDesc second = {on(1), CU_MEM_ACCESS_FLAGS_PROT_READ};
  ASSERT_EQ(api_.cuMemSetAccess(shared.address(), kGranule, &second, 1), CUDA_SUCCESS);
  EXPECT_EQ(read(1, shared.address(), kGranule), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemsetD8Async(shared.address(), 1, kGranule, streams_[1]),
            CUDA_ERROR_INVALID_VALUE)
      << "it may only read";
  const CUmemAccessDesc none = {on(1), CU_MEM_ACCESS_FLAGS_PROT_NONE};
  ASSERT_EQ(api_.cuMemSetAccess(shared.address(), kGranule, &none, 1), CUDA_SUCCESS);
  EXPECT_EQ(read(0, shared.address(), kGranule), CUDA_SUCCESS);
  EXPECT_EQ(read(1, shared.address(), kGranule), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(SimulatedContextsTest, RegisteredMemoryIsItsContextsUnlessItIsPortable) {
  std::vector<char> memory(4096);
  const auto address = reinterpret_cast<CUdeviceptr>(memory.data());
  const auto write = [&](int device) {
    return api_.cuStreamWriteValue64(streams_[device], address, 1, 0);
  };
  CUdeviceptr found = 0;
  ASSERT_EQ(api_.cuMemHostRegister(memory.data(), 4096, CU_MEMHOSTREGISTER_DEVICEMAP),
            CUDA_SUCCESS);
  EXPECT_EQ(write(0), CUDA_SUCCESS);
  EXPECT_EQ(write(1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api_.cuMemHostGetDevicePointer(&found, memory.data(), 0), CUDA_SUCCESS);
  use(1);
  EXPECT_EQ(api_.cuMemHostGetDevicePointer(&found, memory.data(), 0), CUDA_ERROR_INVALID_VALUE);
  driver_.wait_until_idle();
  ASSERT_EQ(api_.cuMemHostUnregister(memory.data()), CUDA_SUCCESS);
  ASSERT_EQ(api_.cuMemHostRegister(memory.data(), 4096, CU_MEMHOSTREGISTER_PORTABLE), CUDA_SUCCESS);
  EXPECT_EQ(write(0), CUDA_SUCCESS);
  EXPECT_EQ(write(1), CUDA_SUCCESS);
  driver_.wait_until_idle();
  ASSERT_EQ(api_.cuMemHostUnregister(memory.data()), CUDA_SUCCESS);
}

TEST_F(SimulatedContextsTest, CopiesReachEachDevicesMemoryFromAnyStream) {
  const DeviceBuffer first(api_, kGranule, on(0));
  const DeviceBuffer second(api_, kGranule, on(1));
  const PinnedBuffer host(api_, 4096);
  memset(host.data(), 5, host.bytes());
  for (const CUstream stream : streams_) {
    ASSERT_EQ(api_.cuMemcpyHtoDAsync(first.address(), host.data(), 4096, stream), CUDA_SUCCESS);
    ASSERT_EQ(api_.cuMemcpyDtoDAsync(second.address(), first.address(), 4096, stream),
              CUDA_SUCCESS);
    ASSERT_EQ(api_.cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(second.data()[4095], 5);
    memset(second.data(), 0, 4096);
  }
}

}  // namespace
}  // namespace tencache
