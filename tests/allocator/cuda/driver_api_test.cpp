// SPDX-License-Identifier: Apache-2.0
//
// The table of the driver's functions: the error on a machine without a driver, and the Status of a
// failed call. Suites over the simulated driver prove the calls themselves.
#include "platform/cuda/driver_api.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/cuda/simulated_driver.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

bool has_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}

TEST(LoadDriverTest, WithoutADriverSaysWhatIsMissingAndTheRemedy) {
  if (has_driver()) GTEST_SKIP() << "there is a libcuda.so.1 on this machine";
  const Result<DriverApi> driver = load_driver();
  ASSERT_FALSE(driver.is_ok());
  EXPECT_EQ(driver.status().code(), StatusCode::kUnavailable);
  if (has_nvidia_device("")) {
    EXPECT_THAT(driver.status().message(), HasSubstr("libcuda.so.1"));
    EXPECT_THAT(driver.status().message(), EndsWith("the container the GPU (--gpus all)."));
  } else {
    EXPECT_EQ(driver.status().message(),
              "No NVIDIA GPU is visible here. The cpu backend needs none.");
  }
}

TEST(NvidiaDeviceTest, IsSeenWithAndWithoutItsDriver) {
  const TestDirectory directory;
  const std::string& root = directory.path();
  EXPECT_FALSE(has_nvidia_device(root)) << "neither folder is there";
  const auto add_device = [&root](const std::string& name, const std::string& vendor,
                                  const std::string& device_class) {
    const std::string folder = root + "/sys/bus/pci/devices/" + name;
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/vendor") << vendor << "\n";
    std::ofstream(folder + "/class") << device_class << "\n";
  };
  add_device("0000:00:01.0", "0x8086", "0x030000");
  add_device("0000:00:04.0", "0x10de", "0x060000");
  std::filesystem::create_directories(root + "/sys/bus/pci/devices/0000:00:02.0");
  EXPECT_FALSE(has_nvidia_device(root)) << "another vendor, a chipset, and one that tells nothing";
  add_device("0000:00:03.0", "0x10de", "0x030200");
  EXPECT_TRUE(has_nvidia_device(root));
  std::filesystem::remove_all(root + "/sys");
  EXPECT_FALSE(has_nvidia_device(root));
  std::filesystem::create_directories(root + "/dev");
  std::ofstream(root + "/dev/nvidiactl") << "";
  EXPECT_TRUE(has_nvidia_device(root)) << "containers may have no /sys";
}

TEST(LoadDriverTest, WithADriverFillsTheTableOrSaysWhyNot) {
  if (!has_driver()) GTEST_SKIP() << "there is no libcuda.so.1 on this machine";
  const Result<DriverApi> driver = load_driver();
  if (!driver.is_ok()) {
    EXPECT_EQ(driver.status().code(), StatusCode::kUnavailable);
    GTEST_SKIP() << driver.status().message();
  }
#define TENCACHE_EXPECT_FILLED(name) EXPECT_NE(driver.value().name, nullptr) << #name;
  TENCACHE_CUDA_FUNCTIONS(TENCACHE_EXPECT_FILLED)
#undef TENCACHE_EXPECT_FILLED
  int version = 0;
  EXPECT_EQ(driver.value().cuDriverGetVersion(&version), CUDA_SUCCESS);
  EXPECT_GE(version, kDriverApiVersion);
}

class CudaStatusTest : public ::testing::Test {
 protected:
  SimulatedDriver driver_;
};

TEST_F(CudaStatusTest, SuccessIsOk) {
  EXPECT_TRUE(cuda_status(driver_.api(), CUDA_SUCCESS, "Nothing").is_ok());
  EXPECT_EQ(driver_.calls("cuGetErrorName"), 0u) << "success asks for no text";
}

TEST_F(CudaStatusTest, ResultBecomesTheCodeTheCallerActsOn) {
  const std::pair<CUresult, StatusCode> expected[] = {
      {CUDA_ERROR_OUT_OF_MEMORY, StatusCode::kOutOfMemory},
      {CUDA_ERROR_INVALID_VALUE, StatusCode::kInvalidArgument},
      {CUDA_ERROR_INVALID_DEVICE, StatusCode::kInvalidArgument},
      {CUDA_ERROR_INVALID_HANDLE, StatusCode::kInvalidArgument},
      {CUDA_ERROR_NO_DEVICE, StatusCode::kUnavailable},
      {CUDA_ERROR_NOT_INITIALIZED, StatusCode::kUnavailable},
      // CUDA_ERROR_DEINITIALIZED ends the use of the driver; see driver_use_test.cpp.
      {CUDA_ERROR_NOT_PERMITTED, StatusCode::kUnavailable},
      {CUDA_ERROR_NOT_SUPPORTED, StatusCode::kUnavailable},
      {CUDA_ERROR_STUB_LIBRARY, StatusCode::kUnavailable},
      {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, StatusCode::kUnavailable},
      {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, StatusCode::kUnavailable},
      {CUDA_ERROR_ILLEGAL_ADDRESS, StatusCode::kIoError},
      {CUDA_ERROR_UNKNOWN, StatusCode::kIoError},
  };
  for (const auto& [result, code] : expected) {
    EXPECT_EQ(cuda_status(driver_.api(), result, "x").code(), code) << result;
  }
}

TEST_F(CudaStatusTest, MessageHoldsTheAttemptTheNameAndTheText) {
  EXPECT_EQ(cuda_status(driver_.api(), CUDA_ERROR_OUT_OF_MEMORY, "A frame of 2 MiB").message(),
            "A frame of 2 MiB: CUDA_ERROR_OUT_OF_MEMORY (out of memory).");
}

TEST_F(CudaStatusTest, ResultUnknownToTheDriverIsNamedByItsNumber) {
  const Status status = cuda_status(driver_.api(), static_cast<CUresult>(998), "A copy");
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_EQ(status.message(), "A copy: CUDA error 998.");
}

}  // namespace
}  // namespace tencache
