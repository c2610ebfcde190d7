// SPDX-License-Identifier: Apache-2.0
//
// Modules and kernels of the simulated driver: a kernel gets the parameters of the moment of its
// launch and runs in the stream's order; images, names, handles and shapes that the driver would
// refuse are refused; ranges that the device cannot reach fail the context.
#include "support/cuda/simulated_modules.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>

#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver_parts.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 2 * kMiB;

// A module with the kernel "add", which does *target += value. The target is in device memory, or
// with is_host_ in registered host memory.
class SimulatedModulesTest : public ::testing::Test {
 protected:
  SimulatedModulesTest() {
    driver_.add_kernel(
        "add", {.parameter_bytes = {sizeof(CUdeviceptr), sizeof(int)},
                .ranges = [this](const SimulatedLaunch& launch) { return ranges_of(launch); },
                .run =
                    [](const SimulatedLaunch& launch) {
                      int value = 0;
                      memcpy(&value, launch.values[1].data(), sizeof value);
                      *reinterpret_cast<int*>(target_of(launch)) += value;
                    }});
    EXPECT_EQ(api_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    EXPECT_EQ(api_.cuModuleLoadData(&module_, image_.c_str()), CUDA_SUCCESS);
    EXPECT_EQ(api_.cuModuleGetFunction(&function_, module_, "add"), CUDA_SUCCESS);
  }

  static CUdeviceptr target_of(const SimulatedLaunch& launch) {
    CUdeviceptr target = 0;
    memcpy(&target, launch.values[0].data(), sizeof target);
    return target;
  }
  SimulatedKernel::Ranges ranges_of(const SimulatedLaunch& launch) const {
    const DeviceRange range = {target_of(launch), sizeof(int)};
    if (is_host_) return {{}, {range}, {}};
    return {{range}, {}, {}};
  }
  CUresult launch(CUdeviceptr target, int value) {
    void* parameters[] = {&target, &value};
    return api_.cuLaunchKernel(function_, 1, 1, 1, 32, 1, 1, 0, stream_, parameters, nullptr);
  }

  SimulatedDriver driver_{{.kernel_bytes_per_s = 4000}};  // one millisecond a launch
  const DriverApi& api_ = driver_.api();
  CurrentContext context_{api_};
  const std::string image_ = simulated_image(90, {"add", "nobody"});
  bool is_host_ = false;
  CUstream stream_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
};

TEST_F(SimulatedModulesTest, FunctionTellsItsNameAndItsParameters) {
  SimulatedModules& modules = driver_.parts().modules;
  const char* name = nullptr;
  EXPECT_EQ(modules.function_name(&name, function_), CUDA_SUCCESS);
  EXPECT_STREQ(name, "add");
  size_t offset = 1;
  size_t bytes = 0;
  EXPECT_EQ(modules.parameter(function_, 0, &offset, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(offset, 0u);
  EXPECT_EQ(modules.parameter(function_, 1, &offset, &bytes), CUDA_SUCCESS);
  EXPECT_EQ(offset, sizeof(CUdeviceptr));
  EXPECT_EQ(bytes, sizeof(int));
  EXPECT_EQ(modules.parameter(function_, 2, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(modules.parameter(nullptr, 0, &offset, &bytes), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(modules.function_name(&name, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(SimulatedModulesTest, AKernelRunsInOrderWithTheParametersOfItsLaunch) {
  const DeviceBuffer buffer(api_, kBytes);
  const auto begin = std::chrono::steady_clock::now();
  int value = 1;
  CUdeviceptr target = buffer.address();
  void* parameters[] = {&target, &value};
  for (int round = 0; round < 10; ++round) {
    ASSERT_EQ(api_.cuLaunchKernel(function_, 1, 1, 1, 32, 1, 1, 0, stream_, parameters, nullptr),
              CUDA_SUCCESS);
    value *= 2;
  }
  target = 0;
  EXPECT_EQ(api_.cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(*reinterpret_cast<int*>(buffer.data()), 1023);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(10));
}

TEST_F(SimulatedModulesTest, OnlyImagesForTheGpuAreLoaded) {
  CUmodule module = nullptr;
  EXPECT_EQ(api_.cuModuleLoadData(&module,
                                  "\x7f"
                                  "ELF"),
            CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(api_.cuModuleLoadData(&module, simulated_image(100, {"add"}).c_str()),
            CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(api_.cuModuleLoadData(nullptr, image_.c_str()), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimulatedModulesTest, OnlyKernelsOfTheModuleThatAreSimulatedAreFound) {
  CUfunction function = nullptr;
  EXPECT_EQ(api_.cuModuleGetFunction(&function, module_, "nobody"), CUDA_ERROR_NOT_FOUND);
  driver_.add_kernel("other", {});
  EXPECT_EQ(api_.cuModuleGetFunction(&function, module_, "other"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(api_.cuModuleGetFunction(&function, nullptr, "add"), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(SimulatedModulesTest, WhatCannotBeLaunchedIsRefused) {
  CUdeviceptr target = 0;
  void* parameters[] = {&target, nullptr};
  const auto launch_shape = [&](unsigned blocks, unsigned rows, unsigned threads) {
    int value = 0;
    parameters[1] = &value;
    return api_.cuLaunchKernel(function_, blocks, rows, 1, threads, 1, 1, 0, stream_, parameters,
                               nullptr);
  };
  EXPECT_EQ(launch_shape(0, 1, 32), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch_shape(1, 2, 32), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch_shape(1, 1, 2048), CUDA_ERROR_INVALID_VALUE);
  parameters[1] = nullptr;
  EXPECT_EQ(api_.cuLaunchKernel(function_, 1, 1, 1, 32, 1, 1, 0, stream_, parameters, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api_.cuLaunchKernel(function_, 1, 1, 1, 32, 1, 1, 0, stream_, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(driver_.leaks().find("a module of 2 kernels"), std::string::npos);
  EXPECT_EQ(api_.cuModuleUnload(module_), CUDA_SUCCESS);
  EXPECT_EQ(launch_shape(1, 1, 32), CUDA_ERROR_INVALID_HANDLE) << "its module is gone";
  EXPECT_EQ(api_.cuModuleUnload(module_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(driver_.leaks().find("module"), std::string::npos);
}

TEST_F(SimulatedModulesTest, AKernelReachesRegisteredHostMemoryAlone) {
  is_host_ = true;
  const PinnedBuffer pinned(api_, 64);
  CUdeviceptr address = 0;
  ASSERT_EQ(api_.cuMemHostGetDevicePointer(&address, pinned.data(), 0), CUDA_SUCCESS);
  ASSERT_EQ(launch(address, 5), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(*reinterpret_cast<int*>(pinned.data()), 5);
  alignas(4) char pageable[4] = {};
  EXPECT_EQ(api_.cuMemHostGetDevicePointer(&address, pageable, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(launch(reinterpret_cast<CUdeviceptr>(pageable), 5), CUDA_SUCCESS);
  EXPECT_EQ(api_.cuStreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(pageable[0], 0);
}

TEST_F(SimulatedModulesTest, MemoryThatIsNotMappedFailsTheContext) {
  DeviceBuffer buffer(api_, kBytes);
  ASSERT_EQ(buffer.unmap(), CUDA_SUCCESS);
  ASSERT_EQ(launch(buffer.address(), 1), CUDA_SUCCESS) << "nobody looks before its turn";
  EXPECT_EQ(api_.cuStreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace tencache
