// SPDX-License-Identifier: Apache-2.0
//
// The simulated driver, which must behave like the real one: devices and contexts, memory and its
// mappings, host registrations, planned failures, and leaks. simulated_streams_test.cpp is the
// suite of its streams.
#include "support/cuda/simulated_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/accessible.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver_parts.h"

namespace tencache {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGranule = 2 * kMiB;

CUmemAllocationProp properties_of(CUmemLocation location) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = location;
  return properties;
}
const CUmemAllocationProp kOnDevice = properties_of({CU_MEM_LOCATION_TYPE_DEVICE, 0});
const CUmemAllocationProp kOnHost = properties_of({CU_MEM_LOCATION_TYPE_HOST_NUMA, 0});
const CUmemAccessDesc kDeviceAccess = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                       CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
const CUmemAccessDesc kHostAccess = {{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0},
                                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

class SimulatedMemoryTest : public ::testing::Test {
 protected:
  SimulatedMemoryTest() : driver_({.capacity_bytes = 8 * kGranule}), api_(driver_.api()) {}
  ~SimulatedMemoryTest() override { EXPECT_EQ(driver_.leaks(), ""); }

  CUdeviceptr reserve(uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(api_.cuMemAddressReserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
    return address;
  }
  CUmemGenericAllocationHandle create(uint64_t bytes,
                                      const CUmemAllocationProp& properties = kOnDevice) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(api_.cuMemCreate(&handle, bytes, &properties, 0), CUDA_SUCCESS);
    return handle;
  }
  CUresult try_create(uint64_t bytes, const CUmemAllocationProp& properties = kOnDevice) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = api_.cuMemCreate(&handle, bytes, &properties, 0);
    if (result == CUDA_SUCCESS) {
      EXPECT_EQ(api_.cuMemRelease(handle), CUDA_SUCCESS);
    }
    return result;
  }
  CUresult map(CUdeviceptr address, CUmemGenericAllocationHandle handle, uint64_t bytes) {
    return api_.cuMemMap(address, bytes, 0, handle, 0);
  }
  CUresult allow(CUdeviceptr address, uint64_t bytes,
                 const CUmemAccessDesc& access = kDeviceAccess) {
    return api_.cuMemSetAccess(address, bytes, &access, 1);
  }
  size_t free_bytes() {
    const CurrentContext context(api_);
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(api_.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(total, 8 * kGranule);
    return free;
  }

  SimulatedDriver driver_;
  const DriverApi& api_;
};

TEST_F(SimulatedMemoryTest, ReservationIsAlignedAndInaccessible) {
  CUdeviceptr address = 0;
  ASSERT_EQ(api_.cuMemAddressReserve(&address, 3 * kGranule, 16 * kMiB, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(address % (16 * kMiB), 0u);
  EXPECT_FALSE(is_readable(pointer(address)));
  EXPECT_EQ(api_.cuMemAddressFree(address, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api_.cuMemAddressFree(address + kGranule, 2 * kGranule), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(api_.cuMemAddressFree(address, 3 * kGranule), CUDA_SUCCESS);

  CUdeviceptr again = 0;
  ASSERT_EQ(api_.cuMemAddressReserve(&again, kGranule, 0, address, 0), CUDA_SUCCESS);
  EXPECT_EQ(again, address) << "the hint is followed where the address is free";
  CUdeviceptr other = 0;
  ASSERT_EQ(api_.cuMemAddressReserve(&other, kGranule, 0, address, 0), CUDA_SUCCESS);
  EXPECT_NE(other, address);
  EXPECT_EQ(api_.cuMemAddressFree(again, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemAddressFree(other, kGranule), CUDA_SUCCESS);
}

TEST_F(SimulatedMemoryTest, ReservationRefusesOddValues) {
  CUdeviceptr address = 0;
  EXPECT_EQ(api_.cuMemAddressReserve(nullptr, kGranule, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api_.cuMemAddressReserve(&address, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api_.cuMemAddressReserve(&address, 1000, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api_.cuMemAddressReserve(&address, kGranule, 3000, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api_.cuMemAddressReserve(&address, kGranule, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimulatedMemoryTest, HandleHasWholeGranulesWithinTheCapacity) {
  EXPECT_EQ(try_create(0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_create(kGranule / 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_create(kGranule + 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_create(9 * kGranule), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_create(8 * kGranule), CUDA_SUCCESS);

  const CUmemGenericAllocationHandle handle = create(5 * kGranule);
  EXPECT_EQ(free_bytes(), 3 * kGranule);
  EXPECT_EQ(try_create(4 * kGranule), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_create(3 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(free_bytes(), 8 * kGranule);
}

TEST_F(SimulatedMemoryTest, HandleNeedsALocationThatExists) {
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(api_.cuMemCreate(&handle, kGranule, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_create(kGranule, properties_of({CU_MEM_LOCATION_TYPE_DEVICE, 1})),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(try_create(kGranule, properties_of({CU_MEM_LOCATION_TYPE_HOST_NUMA, 1})),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_create(kGranule, properties_of({CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0})),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_create(kGranule, properties_of({CU_MEM_LOCATION_TYPE_HOST, 0})),
            CUDA_ERROR_NOT_SUPPORTED);
  CUmemAllocationProp shared = kOnHost;
  shared.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(try_create(kGranule, shared), CUDA_ERROR_INVALID_VALUE);

  size_t granularity = 0;
  EXPECT_EQ(api_.cuMemGetAllocationGranularity(&granularity, &kOnDevice,
                                               CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  EXPECT_EQ(granularity, kGranule);
}

TEST_F(SimulatedMemoryTest, MappingNeedsAWholeHandleAndAFreeRange) {
  const CUdeviceptr address = reserve(4 * kGranule);
  const CUmemGenericAllocationHandle handle = create(2 * kGranule);
  EXPECT_EQ(map(address, handle, kGranule), CUDA_ERROR_INVALID_VALUE) << "not its size";
  EXPECT_EQ(api_.cuMemMap(address, 2 * kGranule, kGranule, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(map(address + 4096, handle, 2 * kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(map(address + 3 * kGranule, handle, 2 * kGranule), CUDA_ERROR_INVALID_VALUE)
      << "reaches beyond the reservation";
  EXPECT_EQ(map(address, handle + 1, 2 * kGranule), CUDA_ERROR_INVALID_VALUE) << "no such handle";
  ASSERT_EQ(map(address + kGranule, handle, 2 * kGranule), CUDA_SUCCESS);
  for (const uint64_t granules : {0, 1, 2}) {
    EXPECT_EQ(map(address + granules * kGranule, handle, 2 * kGranule), CUDA_ERROR_INVALID_VALUE)
        << "overlaps the mapping, at granule " << granules;
  }
  EXPECT_EQ(api_.cuMemAddressFree(address, 4 * kGranule), CUDA_ERROR_INVALID_VALUE) << "mapped";
  EXPECT_EQ(api_.cuMemUnmap(address + kGranule, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(map(address, handle, 2 * kGranule), CUDA_ERROR_INVALID_VALUE) << "released";
  EXPECT_EQ(api_.cuMemAddressFree(address, 4 * kGranule), CUDA_SUCCESS);
}

TEST_F(SimulatedMemoryTest, AccessSpansMappingsAndEndsWithThem) {
  const CUdeviceptr address = reserve(4 * kGranule);
  const CUmemGenericAllocationHandle first = create(kGranule);
  const CUmemGenericAllocationHandle second = create(2 * kGranule);
  ASSERT_EQ(map(address, first, kGranule), CUDA_SUCCESS);
  ASSERT_EQ(map(address + kGranule, second, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_FALSE(is_readable(pointer(address))) << "mapped, but nobody has access";
  EXPECT_EQ(allow(address, 4 * kGranule), CUDA_ERROR_INVALID_VALUE) << "the last is not mapped";
  EXPECT_EQ(allow(address, 2 * kGranule), CUDA_ERROR_INVALID_VALUE) << "half of a mapping";
  EXPECT_EQ(allow(address, 3 * kGranule,
                  {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}),
            CUDA_ERROR_INVALID_DEVICE);
  ASSERT_EQ(allow(address, 3 * kGranule), CUDA_SUCCESS);
  memset(pointer(address), 7, 3 * kGranule);

  EXPECT_EQ(api_.cuMemUnmap(address, 2 * kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api_.cuMemUnmap(address + 2 * kGranule, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api_.cuMemUnmap(address, 4 * kGranule), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(api_.cuMemUnmap(address, 3 * kGranule), CUDA_SUCCESS) << "whole mappings at once";
  EXPECT_FALSE(is_readable(pointer(address + kGranule)));

  ASSERT_EQ(map(address, second, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_FALSE(is_readable(pointer(address))) << "access went with the mapping before";
  ASSERT_EQ(allow(address, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(*static_cast<char*>(pointer(address)), 7) << "bytes belong to the handle";
  EXPECT_EQ(api_.cuMemUnmap(address, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemRelease(second), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemAddressFree(address, 4 * kGranule), CUDA_SUCCESS);
}

TEST_F(SimulatedMemoryTest, AccessMayBeReadOnlyOrNone) {
  DeviceBuffer buffer(api_, kGranule);
  EXPECT_TRUE(overwrite_with_zero(buffer.data()));
  ASSERT_EQ(buffer.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  EXPECT_TRUE(is_readable(buffer.data()));
  EXPECT_FALSE(overwrite_with_zero(buffer.data()));
  ASSERT_EQ(buffer.set_access(CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_SUCCESS);
  EXPECT_FALSE(is_readable(buffer.data()));
  EXPECT_EQ(buffer.set_access(static_cast<CUmemAccess_flags>(2)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimulatedMemoryTest, CapacityIsHeldUntilReleasedAndUnmapped) {
  const CUdeviceptr address = reserve(16 * kGranule);
  const CUmemGenericAllocationHandle handle = create(8 * kGranule);
  ASSERT_EQ(map(address, handle, 8 * kGranule), CUDA_SUCCESS);
  ASSERT_EQ(map(address + 8 * kGranule, handle, 8 * kGranule), CUDA_SUCCESS) << "a second address";
  ASSERT_EQ(allow(address, 16 * kGranule), CUDA_SUCCESS);
  static_cast<char*>(pointer(address))[5] = 42;
  EXPECT_EQ(static_cast<char*>(pointer(address + 8 * kGranule))[5], 42);

  EXPECT_EQ(try_create(kGranule), CUDA_ERROR_OUT_OF_MEMORY) << "create before release";
  ASSERT_EQ(api_.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(try_create(kGranule), CUDA_ERROR_OUT_OF_MEMORY) << "mapped twice";
  EXPECT_TRUE(is_readable(pointer(address))) << "memory lives until the last mapping goes";
  ASSERT_EQ(api_.cuMemUnmap(address, 8 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(try_create(kGranule), CUDA_ERROR_OUT_OF_MEMORY) << "mapped once";
  ASSERT_EQ(api_.cuMemUnmap(address + 8 * kGranule, 8 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(try_create(8 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemAddressFree(address, 16 * kGranule), CUDA_SUCCESS);
}

TEST_F(SimulatedMemoryTest, HostMemoryIsMappedBesideDeviceMemoryAndCostsNone) {
  const CUdeviceptr address = reserve(2 * kGranule);
  const CUmemGenericAllocationHandle on_device = create(kGranule);
  const CUmemGenericAllocationHandle on_host = create(kGranule, kOnHost);
  EXPECT_EQ(free_bytes(), 7 * kGranule);
  ASSERT_EQ(map(address, on_device, kGranule), CUDA_SUCCESS);
  ASSERT_EQ(map(address + kGranule, on_host, kGranule), CUDA_SUCCESS);
  ASSERT_EQ(allow(address, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(allow(address, 2 * kGranule, kHostAccess), CUDA_ERROR_INVALID_VALUE)
      << "the processor does not reach the device's memory";
  EXPECT_EQ(allow(address + kGranule, kGranule, kHostAccess), CUDA_SUCCESS);
  EXPECT_TRUE(overwrite_with_zero(pointer(address + kGranule)));
  EXPECT_EQ(api_.cuMemUnmap(address, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemRelease(on_device), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemRelease(on_host), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuMemAddressFree(address, 2 * kGranule), CUDA_SUCCESS);
}

TEST_F(SimulatedMemoryTest, ThreadsMayMapAndUnmapAtOnce) {
  const auto work = [this](char value) {
    const CurrentContext context(api_);
    for (int round = 0; round < 30; ++round) {
      const DeviceBuffer buffer(api_, 2 * kGranule);
      const PinnedBuffer source(api_, 4096);
      memset(source.data(), value, source.bytes());
      EXPECT_EQ(api_.cuMemcpyHtoDAsync(buffer.address() + kGranule, source.data(), source.bytes(),
                                       nullptr),
                CUDA_SUCCESS);
      EXPECT_EQ(api_.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
      EXPECT_EQ(memcmp(buffer.data() + kGranule, source.data(), source.bytes()), 0);
    }
  };
  std::vector<std::thread> threads;
  for (char value = 1; value <= 4; ++value) threads.emplace_back(work, value);
  for (std::thread& thread : threads) thread.join();
}

TEST(SimulatedDevicesTest, SayWhatTheConfigSays) {
  const SimulatedDriver driver({.device_count = 2,
                                .capacity_bytes = 5 * kGranule,
                                .has_host_numa_handles = false,
                                .host_numa_id = 3,
                                .attributes = {{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132}}});
  const DriverApi& api = driver.api();
  int value = 0;
  CUdevice device = 0;
  EXPECT_EQ(api.cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(api.cuDriverGetVersion(&value), CUDA_SUCCESS);
  EXPECT_EQ(value, kDriverApiVersion);
  EXPECT_EQ(api.cuDeviceGetCount(&value), CUDA_SUCCESS);
  EXPECT_EQ(value, 2);
  EXPECT_EQ(api.cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
  ASSERT_EQ(api.cuDeviceGet(&device, 1), CUDA_SUCCESS);
  char text[32];
  EXPECT_EQ(api.cuDeviceGetName(text, sizeof(text), device), CUDA_SUCCESS);
  EXPECT_STREQ(text, "Simulated GPU");
  EXPECT_EQ(api.cuDeviceGetPCIBusId(text, sizeof(text), device), CUDA_SUCCESS);
  EXPECT_STREQ(text, "0000:02:00.0");
  size_t bytes = 0;
  EXPECT_EQ(api.cuDeviceTotalMem(&bytes, device), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 5 * kGranule);
  const std::pair<CUdevice_attribute, int> attributes[] = {
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 3},
      {CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
      {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 0},
  };
  for (const auto& [attribute, expected] : attributes) {
    EXPECT_EQ(api.cuDeviceGetAttribute(&value, attribute, device), CUDA_SUCCESS);
    EXPECT_EQ(value, expected) << attribute;
  }
  const CUmemAllocationProp on_host = properties_of({CU_MEM_LOCATION_TYPE_HOST_NUMA, 3});
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(api.cuMemCreate(&handle, kGranule, &on_host, 0), CUDA_ERROR_NOT_SUPPORTED);
}

TEST(SimulatedDevicesTest, EachHasACapacityAndAContextOfItsOwn) {
  const SimulatedDriver driver({.device_count = 2, .capacity_bytes = 2 * kGranule});
  const DriverApi& api = driver.api();
  const CUmemAllocationProp second = properties_of({CU_MEM_LOCATION_TYPE_DEVICE, 1});
  CUmemGenericAllocationHandle handles[2] = {};
  ASSERT_EQ(api.cuMemCreate(&handles[0], 2 * kGranule, &kOnDevice, 0), CUDA_SUCCESS);
  ASSERT_EQ(api.cuMemCreate(&handles[1], kGranule, &second, 0), CUDA_SUCCESS);
  for (const CUdevice device : {0, 1}) {
    const CurrentContext context(api, device);
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(api.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(free, device == 0 ? 0 : kGranule);
  }
}

TEST(SimulatedDevicesTest, ContextIsCurrentOnOneThreadWhileItIsRetained) {
  const SimulatedDriver driver;
  const DriverApi& api = driver.api();
  CUstream stream = nullptr;
  CUcontext context = nullptr;
  EXPECT_EQ(api.cuStreamCreateWithPriority(&stream, 0, 0), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(api.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(api.cuStreamQuery(nullptr), CUDA_ERROR_INVALID_CONTEXT) << "retained, not current";
  ASSERT_EQ(api.cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(api.cuStreamQuery(nullptr), CUDA_SUCCESS);
  std::thread([&api] {
    CUcontext current = nullptr;
    EXPECT_EQ(api.cuCtxGetCurrent(&current), CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
    EXPECT_EQ(api.cuStreamQuery(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  }).join();
  ASSERT_EQ(api.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  EXPECT_EQ(api.cuStreamQuery(nullptr), CUDA_ERROR_INVALID_CONTEXT) << "released";
  EXPECT_EQ(api.cuCtxSetCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(api.cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
}

TEST(SimulatedDevicesTest, ContextsAreAStackOfTheThread) {
  SimulatedDriver driver({.device_count = 2});
  const DriverApi& api = driver.api();
  SimulatedDevices& devices = driver.parts().devices;
  CUcontext contexts[2] = {};
  for (const CUdevice device : {0, 1}) {
    ASSERT_EQ(api.cuDevicePrimaryCtxRetain(&contexts[device], device), CUDA_SUCCESS);
  }
  const auto current = [&api] {
    CUcontext context = nullptr;
    EXPECT_EQ(api.cuCtxGetCurrent(&context), CUDA_SUCCESS);
    return context;
  };
  EXPECT_EQ(devices.pop_current(nullptr), CUDA_ERROR_INVALID_CONTEXT) << "an empty stack";
  EXPECT_EQ(devices.push_current(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(api.cuCtxSetCurrent(contexts[0]), CUDA_SUCCESS);
  ASSERT_EQ(devices.push_current(contexts[0]), CUDA_SUCCESS);
  ASSERT_EQ(api.cuCtxSetCurrent(contexts[1]), CUDA_SUCCESS) << "replaces the top";
  CUdevice device = 0;
  EXPECT_EQ(devices.device_of_current(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  CUcontext popped = nullptr;
  EXPECT_EQ(devices.pop_current(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, contexts[1]);
  EXPECT_EQ(current(), contexts[0]) << "that of before the push";
  EXPECT_EQ(devices.pop_current(&popped), CUDA_SUCCESS) << "what was set can be popped, too";
  EXPECT_EQ(popped, contexts[0]);
  EXPECT_EQ(current(), nullptr);
  ASSERT_EQ(devices.push_current(contexts[1]), CUDA_SUCCESS);
  ASSERT_EQ(api.cuCtxSetCurrent(nullptr), CUDA_SUCCESS) << "pops";
  EXPECT_EQ(current(), nullptr);
}

TEST(SimulatedDevicesTest, SayOfEachWhetherItsContextIsActiveAndWhoItIs) {
  SimulatedDriver driver({.device_count = 2});
  SimulatedDevices& devices = driver.parts().devices;
  const CurrentContext context(driver.api(), 1);
  unsigned flags = 1;
  int is_active = 0;
  EXPECT_EQ(devices.primary_state(1, &flags, &is_active), CUDA_SUCCESS);
  EXPECT_EQ(flags, 0u);
  EXPECT_EQ(is_active, 1);
  EXPECT_EQ(devices.primary_state(0, nullptr, &is_active), CUDA_SUCCESS);
  EXPECT_EQ(is_active, 0);
  EXPECT_EQ(devices.primary_state(2, &flags, &is_active), CUDA_ERROR_INVALID_DEVICE);
  CUuuid uuids[2] = {};
  for (const CUdevice device : {0, 1}) {
    EXPECT_EQ(devices.uuid(&uuids[device], device), CUDA_SUCCESS);
  }
  EXPECT_NE(memcmp(&uuids[0], &uuids[1], sizeof(CUuuid)), 0);
  EXPECT_EQ(devices.uuid(&uuids[0], 2), CUDA_ERROR_INVALID_DEVICE);
}

TEST(SimulatedDevicesTest, ContextOfADriverThatIsGoneIsForgotten) {
  CUcontext context = nullptr;
  {
    const SimulatedDriver driver;
    ASSERT_EQ(driver.api().cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver.api().cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  const SimulatedDriver driver;
  EXPECT_EQ(driver.api().cuCtxSetCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(driver.api().cuCtxGetCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(context, nullptr);
}

TEST(SimulatedDevicesTest, CaptureModeBelongsToTheThread) {
  const SimulatedDriver driver;
  const DriverApi& api = driver.api();
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_EQ(api.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  std::thread([&api] {
    CUstreamCaptureMode other = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    ASSERT_EQ(api.cuThreadExchangeStreamCaptureMode(&other), CUDA_SUCCESS);
    EXPECT_EQ(other, CU_STREAM_CAPTURE_MODE_GLOBAL);
  }).join();
  ASSERT_EQ(api.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  mode = static_cast<CUstreamCaptureMode>(3);
  EXPECT_EQ(api.cuThreadExchangeStreamCaptureMode(&mode), CUDA_ERROR_INVALID_VALUE);
}

TEST(SimulatedRegistrationsTest, KeepWithinTheLimitsAndDoNotOverlap) {
  const SimulatedDriver driver(
      {.registered_bytes_max = 10'000, .registered_bytes_per_call_max = 8'000});
  const DriverApi& api = driver.api();
  std::optional<CurrentContext> context(api);
  std::vector<char> memory(20'000);
  char* const begin = memory.data();
  EXPECT_EQ(api.cuMemHostRegister(begin, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api.cuMemHostRegister(begin, 8'001, 0), CUDA_ERROR_OUT_OF_MEMORY) << "of one call";
  ASSERT_EQ(api.cuMemHostRegister(begin, 4'000, 0), CUDA_SUCCESS);
  EXPECT_EQ(api.cuMemHostRegister(begin, 4'000, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(api.cuMemHostRegister(begin + 3'999, 10, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(api.cuMemHostRegister(begin + 4'000, 6'001, 0), CUDA_ERROR_OUT_OF_MEMORY) << "of all";
  ASSERT_EQ(api.cuMemHostRegister(begin + 4'000, 6'000, 0), CUDA_SUCCESS);
  EXPECT_EQ(api.cuMemHostUnregister(begin + 1), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(api.cuMemHostUnregister(begin), CUDA_SUCCESS);
  EXPECT_EQ(api.cuMemHostUnregister(begin), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(api.cuMemHostRegister(begin, 4'000, CU_MEMHOSTREGISTER_PORTABLE), CUDA_SUCCESS);
  EXPECT_EQ(api.cuMemHostUnregister(begin), CUDA_SUCCESS);
  EXPECT_EQ(api.cuMemHostUnregister(begin + 4'000), CUDA_SUCCESS);
  context.reset();
  EXPECT_EQ(driver.leaks(), "");
}

TEST(SimulatedFaultsTest, TheNthCallFailsAndDoesNothing) {
  SimulatedDriver driver;
  const DriverApi& api = driver.api();
  driver.fail("cuMemAddressReserve", 2, CUDA_ERROR_OUT_OF_MEMORY);
  driver.fail("cuMemAddressReserve", 3, CUDA_ERROR_UNKNOWN);
  CUdeviceptr first = 0;
  CUdeviceptr failed = 0;
  CUdeviceptr last = 0;
  EXPECT_EQ(api.cuMemAddressReserve(&first, kGranule, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(api.cuMemAddressReserve(&failed, kGranule, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(api.cuMemAddressReserve(&failed, kGranule, 0, 0, 0), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(api.cuMemAddressReserve(&last, kGranule, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver.calls("cuMemAddressReserve"), 4u);

  driver.fail("cuMemAddressFree", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api.cuMemAddressFree(first, kGranule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api.cuMemAddressFree(first, kGranule), CUDA_SUCCESS) << "it was not freed";
  EXPECT_EQ(api.cuMemAddressFree(last, kGranule), CUDA_SUCCESS);
  EXPECT_EQ(driver.leaks(), "");
}

TEST(SimulatedFaultsTest, CallsTakeTheLatencyTheyWereGiven) {
  SimulatedDriver driver;
  int count = 0;
  driver.set_latency("cuDeviceGetCount", std::chrono::milliseconds(5));
  const uint64_t begin_ns = now_ns();
  EXPECT_EQ(driver.api().cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_GE(now_ns() - begin_ns, 5'000'000u);
}

TEST(SimulatedFaultsTest, FailedContextAnswersQueriesOnly) {
  SimulatedDriver driver;
  const DriverApi& api = driver.api();
  const CurrentContext context(api);
  driver.fail_context(CUDA_ERROR_ECC_UNCORRECTABLE);
  driver.fail_context(CUDA_ERROR_LAUNCH_FAILED);
  CUdeviceptr address = 0;
  int count = 0;
  EXPECT_EQ(api.cuMemAddressReserve(&address, kGranule, 0, 0, 0), CUDA_ERROR_ECC_UNCORRECTABLE);
  EXPECT_EQ(api.cuStreamSynchronize(nullptr), CUDA_ERROR_ECC_UNCORRECTABLE) << "the first one";
  EXPECT_EQ(driver.launch(nullptr, {}, [] {}), CUDA_ERROR_ECC_UNCORRECTABLE);
  EXPECT_EQ(api.cuDeviceGetCount(&count), CUDA_SUCCESS);
}

TEST(SimulatedDriverTest, TellsWhatIsStillAlive) {
  SimulatedDriver driver;
  const DriverApi& api = driver.api();
  EXPECT_EQ(driver.leaks(), "");
  {
    const CurrentContext context(api);
    const DeviceBuffer buffer(api, kGranule);
    const PinnedBuffer pinned(api, 3 * kKiB);
    CUmemGenericAllocationHandle handle = 0;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    ASSERT_EQ(api.cuMemCreate(&handle, 2 * kGranule, &kOnDevice, 0), CUDA_SUCCESS);
    ASSERT_EQ(api.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    ASSERT_EQ(api.cuEventCreate(&event, CU_EVENT_DEFAULT), CUDA_SUCCESS);
    const std::string leaks = driver.leaks();
    EXPECT_THAT(leaks, HasSubstr("the context of device 0, retained 1 times"));
    EXPECT_THAT(leaks, HasSubstr("reservation 0x"));
    EXPECT_THAT(leaks, HasSubstr("mapping 0x"));
    EXPECT_THAT(leaks, HasSubstr("of 2.00 MiB"));
    EXPECT_THAT(leaks, HasSubstr("handle 0x2 of 4.00 MiB"));
    EXPECT_THAT(leaks, HasSubstr("registration 0x"));
    EXPECT_THAT(leaks, HasSubstr("stream 0x"));
    EXPECT_THAT(leaks, HasSubstr("event 0x"));
    EXPECT_EQ(api.cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_EQ(api.cuStreamDestroy(stream), CUDA_SUCCESS);
    EXPECT_EQ(api.cuEventDestroy(event), CUDA_SUCCESS);
  }
  EXPECT_EQ(driver.leaks(), "");
}

class SimulatedDriverDeathTest : public ::testing::Test {
 protected:
  // Uses a fresh child, since a forked one would lack the threads of streams.
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(SimulatedDriverDeathTest, MistakesOfATestAreFailedChecks) {
  EXPECT_DEATH(
      {
        const SimulatedDriver driver;
        const SimulatedDriver second;
      },
      "there is a simulated driver already");
  EXPECT_DEATH(
      {
        DriverApi api;
        {
          const SimulatedDriver driver;
          api = driver.api();
        }
        api.cuInit(0);
      },
      "a simulated driver that is gone");
  EXPECT_DEATH(
      {
        SimulatedDriver driver;
        driver.fail("cuMemFly", 1, CUDA_ERROR_UNKNOWN);
      },
      "the driver has no cuMemFly");
}

TEST_F(SimulatedDriverDeathTest, KernelThatTouchesWhatIsNotMappedEndsTheProcess) {
  EXPECT_DEATH(
      {
        SimulatedDriver driver;
        const CurrentContext context(driver.api());
        DeviceBuffer buffer(driver.api(), kGranule);
        buffer.unmap();
        driver.launch(nullptr, {}, [&buffer] { *static_cast<volatile char*>(buffer.data()) = 1; });
        driver.wait_until_idle();
      },
      "");
}

}  // namespace
}  // namespace tencache
