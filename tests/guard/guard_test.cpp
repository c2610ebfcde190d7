// SPDX-License-Identifier: Apache-2.0
//
// The preloaded guard, in front of a driver that notes its calls (guard/fake_driver.h). Every way
// to a guarded function leads through the hooks, calls arrive as they were made, and any other
// function is served as if there were no guard. The suite runs with the guard in LD_PRELOAD.
// tests/allocator/cuda/launch_gate_test.cpp tests the core's side.
#include <cuda.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi/tencache_guard.h"
#include "guard/fake_driver.h"
#include "platform/cuda/driver_api.h"

#undef cuGetProcAddress

extern "C" {
CUresult cuGetProcAddress(const char* name, void** entry, int version, cuuint64_t flags);
CUresult cuGetProcAddress_v2(const char* name, void** entry, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status);
CUresult cuLaunchKernel_ptsz(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                             CUstream stream, void** arguments, void** extra);
}

namespace tencache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Launch = decltype(&::cuLaunchKernel);
using Get = decltype(&::cuGetProcAddress);
using GetWithStatus = decltype(&::cuGetProcAddress_v2);

constexpr uint32_t kBegun = 7;
constexpr uintptr_t kBase = 0x7f0000000000;
constexpr size_t kBytes = 1 << 20;
const CUstream kStream = reinterpret_cast<CUstream>(0x100);

/// The arguments of one begin(), and how many calls had reached the driver at begin() and at end().
struct Told {
  std::string name;
  void* stream = nullptr;
  std::vector<uintptr_t> addresses;
  std::vector<uint32_t> modes;
  size_t calls_at_begin = 0;
  size_t calls_at_end = 0;
};

/// A stream that ended, and how many calls had reached the driver by then.
using ToldEnd = std::pair<void*, size_t>;

std::vector<Told> g_told;
std::vector<ToldEnd> g_ends;
std::atomic<bool> g_is_watching = true;
std::atomic<int> g_unreadable = 0;
bool g_lets_pass = false;

tencache_arena watched() { return {kBase, g_is_watching.load() ? kBytes : 0}; }

uint32_t begin(const char* name, void* stream, const tencache_access* accesses, uint32_t count) {
  Told told;
  told.name = name;
  told.stream = stream;
  for (uint32_t index = 0; index < count; ++index) {
    told.addresses.push_back(reinterpret_cast<uintptr_t>(accesses[index].address));
    told.modes.push_back(accesses[index].mode);
  }
  told.calls_at_begin = fake_driver()->calls.size();
  g_told.push_back(told);
  return g_lets_pass ? 0 : kBegun;
}

void end(uint32_t begun) {
  EXPECT_EQ(begun, kBegun);
  g_told.back().calls_at_end = fake_driver()->calls.size();
}

void on_unreadable() { ++g_unreadable; }

void on_stream_end(void* stream) { g_ends.emplace_back(stream, fake_driver()->calls.size()); }

const tencache_guard_hooks kHooks = {&watched, &begin, &end, &on_unreadable, &on_stream_end};

void* in_driver(const char* name) { return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name); }

class GuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto install = reinterpret_cast<tencache_guard_install_function>(
        dlsym(RTLD_DEFAULT, "tencache_guard_install"));
    ASSERT_NE(install, nullptr) << "this suite runs with libtencache_guard.so in LD_PRELOAD";
    install(&kHooks);
    *fake_driver() = {};
    g_told.clear();
    g_ends.clear();
    g_is_watching = true;
    g_unreadable = 0;
    g_lets_pass = false;
  }

  /// A handle that stays valid to the end of the process. The guard remembers what it learns of a
  /// handle, so no later kernel may get the same one.
  static CUfunction handle(FakeKernel kernel) {
    static std::vector<std::unique_ptr<FakeKernel>> kernels;
    kernels.push_back(std::make_unique<FakeKernel>(std::move(kernel)));
    return reinterpret_cast<CUfunction>(kernels.back().get());
  }
  static CUresult launch(Launch function, CUfunction kernel, std::vector<void*> arguments,
                         CUstream stream = kStream) {
    return function(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments.data(), nullptr);
  }
  /// Launches one kernel with one address, and checks what the hooks were told.
  void expect_guarded(Launch function, const char* symbol, void* told_stream,
                      CUstream stream = kStream) {
    g_told.clear();
    fake_driver()->calls.clear();
    uintptr_t address = kBase + 4096;
    EXPECT_EQ(launch(function, handle({"scale", {{0, 8}}}), {&address}, stream), CUDA_SUCCESS);
    EXPECT_THAT(fake_driver()->calls, ElementsAre(symbol));
    EXPECT_EQ(fake_driver()->stream, stream);
    ASSERT_THAT(g_told, SizeIs(1)) << symbol;
    EXPECT_EQ(g_told[0].name, "launch::scale");
    EXPECT_EQ(g_told[0].stream, told_stream);
    EXPECT_THAT(g_told[0].addresses, ElementsAre(address));
    EXPECT_THAT(g_told[0].modes, ElementsAre(TENCACHE_READ | TENCACHE_WRITE));
    EXPECT_EQ(g_told[0].calls_at_begin, 0u);
    EXPECT_EQ(g_told[0].calls_at_end, 1u);
  }
};

TEST_F(GuardTest, WhoIsLinkedIsGuarded) {
  expect_guarded(&::cuLaunchKernel, "cuLaunchKernel", kStream);
  expect_guarded(&::cuLaunchKernel_ptsz, "cuLaunchKernel_ptsz", kStream);
}

TEST_F(GuardTest, WhoAsksTheLibraryIsGuarded) {
  expect_guarded(reinterpret_cast<Launch>(in_driver("cuLaunchKernel")), "cuLaunchKernel", kStream);
  expect_guarded(reinterpret_cast<Launch>(in_driver("cuLaunchKernel_ptsz")), "cuLaunchKernel_ptsz",
                 kStream);
}

TEST_F(GuardTest, WhoAsksTheDriverIsGuardedByEitherInterface) {
  const auto get = reinterpret_cast<Get>(in_driver("cuGetProcAddress"));
  void* entry = nullptr;
  ASSERT_EQ(get("cuLaunchKernel", &entry, 11030, 0), CUDA_SUCCESS);
  expect_guarded(reinterpret_cast<Launch>(entry), "cuLaunchKernel", kStream);

  const auto get_with_status = reinterpret_cast<GetWithStatus>(in_driver("cuGetProcAddress_v2"));
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  ASSERT_EQ(get_with_status("cuLaunchKernel", &entry, 13000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
  expect_guarded(reinterpret_cast<Launch>(entry), "cuLaunchKernel", kStream);

  // The CUDA runtime asks for cuGetProcAddress itself; the version decides which of the two
  // interfaces it gets.
  for (const int version : {11030, 12000}) {
    void* other = nullptr;
    ASSERT_EQ(get_with_status("cuGetProcAddress", &other, version, 0, &status), CUDA_SUCCESS);
    const CUresult found =
        version < 12000
            ? reinterpret_cast<Get>(other)("cuLaunchKernel", &entry, version, 0)
            : reinterpret_cast<GetWithStatus>(other)("cuLaunchKernel", &entry, version, 0, &status);
    ASSERT_EQ(found, CUDA_SUCCESS);
    expect_guarded(reinterpret_cast<Launch>(entry), "cuLaunchKernel", kStream);
  }
  ASSERT_EQ(cuGetProcAddress("cuLaunchKernel", &entry, 11030, 0), CUDA_SUCCESS);
  expect_guarded(reinterpret_cast<Launch>(entry), "cuLaunchKernel", kStream);
  ASSERT_EQ(cuGetProcAddress_v2("cuLaunchKernel", &entry, 12000, 0, &status), CUDA_SUCCESS);
  expect_guarded(reinterpret_cast<Launch>(entry), "cuLaunchKernel", kStream);
}

TEST_F(GuardTest, TheNullStreamMeansWhatTheFunctionMeansByIt) {
  void* entry = nullptr;
  ASSERT_EQ(cuGetProcAddress("cuLaunchKernel", &entry, 12000,
                             CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
            CUDA_SUCCESS);
  expect_guarded(reinterpret_cast<Launch>(entry), "cuLaunchKernel_ptsz", TENCACHE_STREAM_PER_THREAD,
                 nullptr);
  expect_guarded(&::cuLaunchKernel_ptsz, "cuLaunchKernel_ptsz", TENCACHE_STREAM_PER_THREAD,
                 nullptr);
  expect_guarded(&::cuLaunchKernel, "cuLaunchKernel", nullptr, nullptr);
}

TEST_F(GuardTest, TheEndOfAStreamIsToldBeforeTheDriverIsCalled) {
  using Destroy = decltype(&::cuStreamDestroy);
  g_is_watching = false;  // memory that leaves later may have been used by the stream
  void* entry = nullptr;
  ASSERT_EQ(cuGetProcAddress("cuStreamDestroy", &entry, 12000, 0), CUDA_SUCCESS);
  for (const Destroy destroy :
       {&::cuStreamDestroy, reinterpret_cast<Destroy>(in_driver("cuStreamDestroy_v2")),
        reinterpret_cast<Destroy>(entry)}) {
    g_ends.clear();
    *fake_driver() = {};
    fake_driver()->result = CUDA_ERROR_INVALID_CONTEXT;
    EXPECT_EQ(destroy(kStream), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_THAT(g_ends, ElementsAre(ToldEnd(kStream, 0)));
    EXPECT_THAT(fake_driver()->calls, ElementsAre("cuStreamDestroy_v2"));
    EXPECT_EQ(fake_driver()->stream, kStream);
  }
  EXPECT_THAT(g_told, IsEmpty());
}

TEST_F(GuardTest, OtherFunctionsAreTheDriversOwn) {
  const auto find =
      reinterpret_cast<tencache_guard_find_function>(dlsym(RTLD_DEFAULT, "tencache_guard_find"));
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  EXPECT_EQ(dlsym(driver, "cuInit"), find(driver, "cuInit"));
  EXPECT_NE(dlsym(driver, "cuLaunchKernel"), find(driver, "cuLaunchKernel"));
  EXPECT_EQ(dlsym(driver, "cuNoSuchFunction"), nullptr);
  void* entry = &entry;
  EXPECT_EQ(cuGetProcAddress("cuInit", &entry, 12000, 0), CUDA_SUCCESS);
  EXPECT_EQ(entry, find(driver, "cuInit"));
  EXPECT_EQ(cuGetProcAddress("cuNoSuchFunction", &entry, 12000, 0), CUDA_ERROR_NOT_FOUND);
  // Functions that the core finds with tencache_guard_find() ask nobody.
  uintptr_t address = kBase;
  launch(reinterpret_cast<Launch>(find(driver, "cuLaunchKernel")), handle({"own", {{0, 8}}}),
         {&address});
  EXPECT_THAT(g_told, IsEmpty());
}

TEST_F(GuardTest, TheCoresOwnCallsAskNobody) {
  const Result<DriverApi> driver = load_driver();
  ASSERT_TRUE(driver.is_ok()) << driver.status().message();
  fake_driver()->calls.clear();
  uintptr_t address = kBase;
  launch(driver.value().cuLaunchKernel, handle({"own", {{0, 8}}}), {&address});
  driver.value().cuMemcpyDtoHAsync(&address, kBase, sizeof address, kStream);
  EXPECT_THAT(fake_driver()->calls, ElementsAre("cuLaunchKernel", "cuMemcpyDtoHAsync_v2"));
  EXPECT_THAT(g_told, IsEmpty());
}

TEST_F(GuardTest, ALibrarysNextOneIsNotTheGuards) {
  for (const char* name : {"place_in_line", "cuPlaceInLine"}) {
    const auto place = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, name));
    ASSERT_NE(place, nullptr);
    EXPECT_EQ(place(), 1) << "the first of two";
  }
}

TEST_F(GuardTest, EveryAlignedWordOfTheArgumentsIsLookedAt) {
  // The kernel takes this struct by value after an int, so it begins in the middle of a word:
  // [4, 24).
  struct [[gnu::packed]] Struct {
    uint32_t first = 1;
    uintptr_t inside = kBase + 8;
    uintptr_t outside = kBase + kBytes;
  };
  uint32_t number = 0;
  Struct by_value;
  uintptr_t last = kBase + kBytes - 1;
  uintptr_t below = kBase - 1;
  launch(&::cuLaunchKernel, handle({"mixed", {{0, 4}, {4, 20}, {24, 8}, {32, 8}}}),
         {&number, &by_value, &last, &below});
  ASSERT_THAT(g_told, SizeIs(1));
  EXPECT_THAT(g_told[0].addresses, ElementsAre(kBase + 8, last));
}

TEST_F(GuardTest, ListsOfAnyLengthAreTold) {
  constexpr size_t kCount = 500;
  std::vector<uintptr_t> list(kCount);
  for (size_t index = 0; index < kCount; ++index) list[index] = kBase + index;
  launch(&::cuLaunchKernel, handle({"foreach", {{0, kCount * 8}}}), {list.data()});
  ASSERT_THAT(g_told, SizeIs(1));
  EXPECT_EQ(g_told[0].addresses, list);
}

TEST_F(GuardTest, PackedArgumentsAreReadFromTheirBlock) {
  std::array<uintptr_t, 3> block = {1, kBase, kBase + 1};
  size_t bytes = 16;  // so the last word is outside
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, block.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &bytes, CU_LAUNCH_PARAM_END};
  EXPECT_EQ(::cuLaunchKernel(handle({"packed", {}}), 1, 1, 1, 1, 1, 1, 0, kStream, nullptr, extra),
            CUDA_SUCCESS);
  ASSERT_THAT(g_told, SizeIs(1));
  EXPECT_THAT(g_told[0].addresses, ElementsAre(kBase));
}

TEST_F(GuardTest, OtherLaunchesAreSeenToo) {
  uintptr_t address = kBase;
  void* arguments[] = {&address};
  CUlaunchConfig config = {};
  config.hStream = kStream;
  EXPECT_EQ(::cuLaunchKernelEx(&config, handle({"ex", {{0, 8}}}), arguments, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(::cuLaunchCooperativeKernel(handle({"cooperative", {{0, 8}}}), 1, 1, 1, 1, 1, 1, 0,
                                        kStream, arguments),
            CUDA_SUCCESS);
  ASSERT_THAT(g_told, SizeIs(2));
  EXPECT_EQ(g_told[0].stream, kStream);
  EXPECT_EQ(g_told[0].name, "launch::ex");
  EXPECT_EQ(g_told[1].name, "launch::cooperative");
  EXPECT_EQ(fake_driver()->arguments, arguments);
}

TEST_F(GuardTest, KernelsOfLibrariesHaveQuestionsOfTheirOwn) {
  uintptr_t address = kBase;
  launch(&::cuLaunchKernel,
         handle({.name = "of_library", .arguments = {{0, 8}}, .is_library_kernel = true}),
         {&address});
  ASSERT_THAT(g_told, SizeIs(1));
  EXPECT_EQ(g_told[0].name, "launch::of_library");
}

TEST_F(GuardTest, WhatCannotBeReadIsLaunchedAndCounted) {
  uintptr_t address = kBase;
  launch(&::cuLaunchKernel, handle({.name = "old", .arguments = {{0, 8}}, .tells_nothing = true}),
         {&address});
  EXPECT_THAT(g_told, IsEmpty());
  EXPECT_EQ(g_unreadable.load(), 1);
  EXPECT_THAT(fake_driver()->calls, ElementsAre("cuLaunchKernel"));
}

TEST_F(GuardTest, AKernelIsAskedAboutOnceUntilAModuleIsUnloaded) {
  std::array<uintptr_t, 2> arguments = {kBase, kBase + 8};
  const CUfunction kernel = handle({"first", {{0, 8}}});
  const auto unload = reinterpret_cast<decltype(&::cuModuleUnload)>(in_driver("cuModuleUnload"));
  launch(&::cuLaunchKernel, kernel, {&arguments[0], &arguments[1]});
  const size_t questions = fake_driver()->questions;
  launch(&::cuLaunchKernel, kernel, {&arguments[0], &arguments[1]});
  std::thread([&] { launch(&::cuLaunchKernel, kernel, {&arguments[0], &arguments[1]}); }).join();
  EXPECT_EQ(fake_driver()->questions, questions);
  // The handle now belongs to another kernel.
  *reinterpret_cast<FakeKernel*>(kernel) = {"second", {{0, 8}, {8, 8}}};
  EXPECT_EQ(unload(nullptr), CUDA_SUCCESS);
  launch(&::cuLaunchKernel, kernel, {&arguments[0], &arguments[1]});
  ASSERT_THAT(g_told, SizeIs(4));
  EXPECT_EQ(g_told[2].name, "launch::first");
  EXPECT_EQ(g_told[3].name, "launch::second");
  EXPECT_THAT(g_told[3].addresses, ElementsAre(kBase, kBase + 8));
  // The guard sees an unloading whichever way the caller found the function for it.
  *reinterpret_cast<FakeKernel*>(kernel) = {"third", {{0, 8}}};
  EXPECT_EQ(::cuModuleUnload(nullptr), CUDA_SUCCESS);
  launch(&::cuLaunchKernel, kernel, {&arguments[0]});
  ASSERT_THAT(g_told, SizeIs(5));
  EXPECT_EQ(g_told[4].name, "launch::third");
}

TEST_F(GuardTest, CopiesAndSetsTellWhatTheyReadAndWrite) {
  const auto to_device = reinterpret_cast<decltype(&::cuMemcpyHtoD)>(in_driver("cuMemcpyHtoD_v2"));
  EXPECT_EQ(to_device(kBase, nullptr, 10), CUDA_SUCCESS);
  EXPECT_EQ(fake_driver()->bytes, 10u);
  const auto copy = reinterpret_cast<decltype(&::cuMemcpyAsync)>(in_driver("cuMemcpyAsync"));
  EXPECT_EQ(copy(kBase + 1, kBase + 2, 11, kStream), CUDA_SUCCESS);
  const auto set = reinterpret_cast<decltype(&::cuMemsetD8Async)>(in_driver("cuMemsetD8Async"));
  EXPECT_EQ(set(kBase + 3, 0, 12, kStream), CUDA_SUCCESS);
  const auto to_host =
      reinterpret_cast<decltype(&::cuMemcpyDtoHAsync)>(in_driver("cuMemcpyDtoHAsync_v2"));
  EXPECT_EQ(to_host(nullptr, kBase + 4, 13, kStream), CUDA_SUCCESS);
  ASSERT_THAT(g_told, SizeIs(4));
  EXPECT_EQ(g_told[0].name, "cuMemcpyHtoD_v2");
  EXPECT_EQ(g_told[0].stream, nullptr);
  EXPECT_THAT(g_told[0].addresses, ElementsAre(kBase));
  EXPECT_THAT(g_told[1].addresses, ElementsAre(kBase + 1, kBase + 2));
  EXPECT_THAT(g_told[1].modes, ElementsAre(TENCACHE_READ | TENCACHE_WRITE, TENCACHE_READ));
  EXPECT_EQ(g_told[1].stream, kStream);
  EXPECT_THAT(g_told[2].addresses, ElementsAre(kBase + 3));
  EXPECT_THAT(g_told[3].addresses, ElementsAre(kBase + 4));
}

TEST_F(GuardTest, ACopyOfRowsIsFoundInItsDescription) {
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = kBase + 16;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = kBase + 32;
  copy.WidthInBytes = 4;
  copy.Height = 2;
  const auto copy_rows = reinterpret_cast<decltype(&::cuMemcpy2D)>(in_driver("cuMemcpy2D_v2"));
  EXPECT_EQ(copy_rows(&copy), CUDA_SUCCESS);
  EXPECT_EQ(fake_driver()->bytes, 8u);
  ASSERT_THAT(g_told, SizeIs(1));
  EXPECT_THAT(g_told[0].addresses, ElementsAre(kBase + 16, kBase + 32));
}

TEST_F(GuardTest, AnOldFunctionOfTheSameNameIsLeftAlone) {
  void* entry = nullptr;
  ASSERT_EQ(cuGetProcAddress("cuMemcpyHtoD", &entry, 2000, 0), CUDA_SUCCESS);
  reinterpret_cast<decltype(&::cuMemcpyHtoD)>(entry)(kBase, nullptr, 1);
  EXPECT_THAT(g_told, IsEmpty());
  ASSERT_EQ(cuGetProcAddress("cuMemcpyHtoD", &entry, 3020, 0), CUDA_SUCCESS);
  reinterpret_cast<decltype(&::cuMemcpyHtoD)>(entry)(kBase, nullptr, 1);
  EXPECT_THAT(g_told, SizeIs(1));
}

TEST_F(GuardTest, NobodyIsAskedAboutOtherMemory) {
  uintptr_t address = kBase + kBytes;
  launch(&::cuLaunchKernel, handle({"elsewhere", {{0, 8}}}), {&address});
  g_is_watching = false;
  address = kBase;
  const CUfunction unwatched = handle({"unwatched", {{0, 8}}});
  launch(&::cuLaunchKernel, unwatched, {&address});
  EXPECT_THAT(g_told, IsEmpty());
  EXPECT_THAT(fake_driver()->calls, SizeIs(2));
}

TEST_F(GuardTest, TheDriversAnswerIsTheCallersAndEndsTheWork) {
  fake_driver()->result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  uintptr_t address = kBase;
  EXPECT_EQ(launch(&::cuLaunchKernel, handle({"large", {{0, 8}}}), {&address}),
            CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  ASSERT_THAT(g_told, SizeIs(1));
  EXPECT_EQ(g_told[0].calls_at_end, 1u);
}

TEST_F(GuardTest, WhatTheHooksLetPassIsNotEnded) {
  g_lets_pass = true;
  uintptr_t address = kBase;
  launch(&::cuLaunchKernel, handle({"announced", {{0, 8}}}), {&address});
  ASSERT_THAT(g_told, SizeIs(1));
  EXPECT_EQ(g_told[0].calls_at_end, 0u);
}

}  // namespace
}  // namespace tencache
