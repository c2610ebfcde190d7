// SPDX-License-Identifier: Apache-2.0
//
// NVRTC: the error on a machine without it; the Status of a refused call, with a simulated NVRTC;
// and the real one, where it is installed, which must compile this project's kernels for each
// generation of GPUs without a warning. Nothing that it makes is run, so no GPU is needed.
#include "platform/cuda/nvrtc_api.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "platform/cuda/copy_kernel.h"
#include "platform/cuda/device_hash.h"
#include "support/child_process.h"
#include "support/cuda/simulated_nvrtc.h"

namespace tencache {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Loads the NVRTC that the build found beside cuda.h. TENCACHE_NVRTC is its path; it may be empty.
Result<NvrtcApi> load_installed() { return load_nvrtc(TENCACHE_NVRTC); }

KernelText hash_kernel(int compute_capability) {
  return {kDeviceHashKernelName, device_hash_kernel_text(), compute_capability};
}

KernelText copy_kernel(int compute_capability) {
  return {kDeviceCopyKernelName, device_copy_kernel_text(), compute_capability};
}

bool is_loaded() {
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"}) {
    if (dlopen(name, RTLD_NOW | RTLD_NOLOAD) != nullptr) return true;
  }
  return false;
}

// These two tests come first, because a library stays loaded once it was found. In the first of
// them no file can be opened, so no library is found.
TEST(LoadNvrtcTest, WhereThereIsNoneSaysWhatWasTriedAndTheRemedy) {
  if (is_loaded()) GTEST_SKIP() << "NVRTC is loaded already";
  const int ended = run_in_child([] {
    if (!deny_syscall(SYS_openat, ENOENT)) _exit(kSkipped);
    const Result<NvrtcApi> none = load_nvrtc("/nowhere/libnvrtc.so");
    ASSERT_FALSE(none.is_ok());
    EXPECT_EQ(none.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(none.status().message(), HasSubstr("/nowhere/libnvrtc.so"));
    EXPECT_THAT(none.status().message(), EndsWith("pip install nvidia-cuda-nvrtc."));
    EXPECT_THAT(load_nvrtc().status().message(), HasSubstr("libnvrtc.so.13"));
  });
  if (ended == kSkipped) GTEST_SKIP() << "this machine allows no filters of system calls";
  EXPECT_EQ(ended, 0);
}

TEST(LoadNvrtcTest, AnotherLibraryLacksItsFunctions) {
  if (is_loaded()) GTEST_SKIP() << "NVRTC is loaded already";
  const Result<NvrtcApi> other = load_nvrtc("libc.so.6");
  ASSERT_FALSE(other.is_ok());
  EXPECT_EQ(other.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(other.status().message(), HasSubstr("nvrtcGetErrorString"));
}

class CompileKernelTest : public ::testing::Test {
 protected:
  ~CompileKernelTest() override { EXPECT_EQ(nvrtc_.leaks(), 0u) << "programs"; }

  SimulatedNvrtc nvrtc_{100};
};

TEST_F(CompileKernelTest, MakesAnImageForTheGpu) {
  const Result<CompiledKernel> compiled = compile_kernel(nvrtc_.api(), hash_kernel(90));
  ASSERT_TRUE(compiled.is_ok()) << compiled.status().message();
  EXPECT_THAT(compiled.value().image.data(), StartsWith("simulated cubin of sm_90\n"));
  EXPECT_THAT(compiled.value().image.data(), HasSubstr(kDeviceHashKernelName));
  EXPECT_EQ(compiled.value().log, "");
}

TEST_F(CompileKernelTest, EveryRefusedCallIsAStatus) {
  for (const char* name : {"create_program", "compile_program", "cubin_size", "cubin"}) {
    SCOPED_TRACE(name);
    nvrtc_.fail(name, kNvrtcOutOfMemory);
    const Result<CompiledKernel> compiled = compile_kernel(nvrtc_.api(), hash_kernel(90));
    ASSERT_FALSE(compiled.is_ok());
    EXPECT_EQ(compiled.status().code(), StatusCode::kOutOfMemory);
    EXPECT_THAT(compiled.status().message(), HasSubstr("NVRTC_ERROR_OUT_OF_MEMORY"));
  }
  for (const char* name : {"log_size", "log"}) {
    nvrtc_.fail(name, kNvrtcOutOfMemory);
    EXPECT_TRUE(compile_kernel(nvrtc_.api(), hash_kernel(90)).is_ok()) << "only " << name;
  }
}

TEST_F(CompileKernelTest, AnErrorOfTheTextComesWithTheLog) {
  nvrtc_.fail("compile_program", kNvrtcCompilation);
  const Result<CompiledKernel> compiled = compile_kernel(nvrtc_.api(), hash_kernel(90));
  ASSERT_FALSE(compiled.is_ok());
  EXPECT_EQ(compiled.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(compiled.status().message(), HasSubstr("line 7: as the test asked"));
}

TEST_F(CompileKernelTest, AGpuThatIsNewerThanTheCompilerIsUnavailable) {
  const Result<CompiledKernel> compiled = compile_kernel(nvrtc_.api(), hash_kernel(130));
  ASSERT_FALSE(compiled.is_ok());
  EXPECT_EQ(compiled.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(compiled.status().message(), HasSubstr("sm_130"));
}

// ---- The real one --------------------------------------------------------------------------

class RealNvrtcTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    Result<NvrtcApi> loaded = load_installed();
    if (!loaded.is_ok()) GTEST_SKIP() << loaded.status().message();
    nvrtc_ = loaded.value();
  }

  NvrtcApi nvrtc_;
};

TEST_P(RealNvrtcTest, TakesTheKernelsWithoutAWord) {
  for (const KernelText& kernel : {hash_kernel(GetParam()), copy_kernel(GetParam())}) {
    const Result<CompiledKernel> compiled = compile_kernel(nvrtc_, kernel);
    ASSERT_TRUE(compiled.is_ok()) << compiled.status().message();
    EXPECT_EQ(compiled.value().log, "");
    ASSERT_GT(compiled.value().image.size(), 4u);
    EXPECT_EQ(std::string(compiled.value().image.data(), 4),
              "\x7f"
              "ELF");
  }
}

// Registers spilled to memory would cost bandwidth that the kernel needs; more than 64 registers
// would leave fewer than 1024 threads on a multiprocessor.
TEST_P(RealNvrtcTest, TheKernelsSpillNoRegisters) {
  for (const KernelText& kernel : {hash_kernel(GetParam()), copy_kernel(GetParam())}) {
    const char* const verbose = "-Xptxas=-v";
    const Result<CompiledKernel> compiled = compile_kernel(nvrtc_, kernel, {&verbose, 1});
    ASSERT_TRUE(compiled.is_ok()) << compiled.status().message();
    const std::string& log = compiled.value().log;
    EXPECT_THAT(log, HasSubstr(" 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"));
    const size_t used = log.find("Used ");
    ASSERT_NE(used, std::string::npos) << log;
    const int registers = atoi(log.c_str() + used + strlen("Used "));
    printf("%s, sm_%d: %d registers\n", kernel.name, GetParam(), registers);
    EXPECT_GT(registers, 0);
    EXPECT_LE(registers, 64);
  }
}

INSTANTIATE_TEST_SUITE_P(Generations, RealNvrtcTest, ::testing::Values(80, 90, 100),
                         [](const auto& info) { return "sm_" + std::to_string(info.param); });

using RealNvrtcErrorsTest = RealNvrtcTest;

TEST_P(RealNvrtcErrorsTest, AreStatusesOfTheRightCode) {
  const Status wrong = compile_kernel(nvrtc_, {"wrong", "int f( {", 90}).status();
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(wrong.message(), HasSubstr("NVRTC_ERROR_COMPILATION"));
  EXPECT_THAT(wrong.message(), HasSubstr("wrong(1): error"));
  const Status unknown = compile_kernel(nvrtc_, hash_kernel(GetParam())).status();
  EXPECT_EQ(unknown.code(), StatusCode::kUnavailable) << unknown.message();
  EXPECT_THAT(unknown.message(), HasSubstr("NVRTC_ERROR_INVALID_OPTION"));
}

INSTANTIATE_TEST_SUITE_P(Unknown, RealNvrtcErrorsTest, ::testing::Values(999));

}  // namespace
}  // namespace tencache
