// SPDX-License-Identifier: Apache-2.0
//
// Pinning through a fake driver of seven functions. A call that pins or unpins records the context
// and the capture mode that it finds. The tests also check the state of the thread afterwards,
// after each failure too.
#include "platform/cuda/host_pinner.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <thread>

#include "base/units.h"

namespace tencache {
namespace {

struct FakeDriver {
  std::map<void*, uint64_t> registered;
  CUresult register_result = CUDA_SUCCESS;
  CUresult set_current_result = CUDA_SUCCESS;
  CUresult exchange_result = CUDA_SUCCESS;
  CUresult unregister_result = CUDA_SUCCESS;
  unsigned flags_seen = 0;
  CUcontext context_seen = nullptr;
  CUstreamCaptureMode mode_seen = CU_STREAM_CAPTURE_MODE_GLOBAL;
  int calls = 0;
};

FakeDriver* g_fake = nullptr;
thread_local CUcontext t_context = nullptr;
thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void note_call() {
  ++g_fake->calls;
  g_fake->context_seen = t_context;
  g_fake->mode_seen = t_mode;
}

DriverApi fake_api() {
  DriverApi api;
  api.cuGetErrorName = [](CUresult, const char** name) {
    *name = "CUDA_ERROR_OF_THE_TEST";
    return CUDA_SUCCESS;
  };
  api.cuGetErrorString = [](CUresult, const char** text) {
    *text = "as asked";
    return CUDA_SUCCESS;
  };
  api.cuCtxGetCurrent = [](CUcontext* context) {
    *context = t_context;
    return CUDA_SUCCESS;
  };
  api.cuCtxSetCurrent = [](CUcontext context) {
    if (g_fake->set_current_result == CUDA_SUCCESS) t_context = context;
    return g_fake->set_current_result;
  };
  api.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* mode) {
    if (g_fake->exchange_result == CUDA_SUCCESS) std::swap(*mode, t_mode);
    return g_fake->exchange_result;
  };
  api.cuMemHostRegister = [](void* memory, size_t bytes, unsigned flags) {
    note_call();
    g_fake->flags_seen = flags;
    if (g_fake->register_result == CUDA_SUCCESS) g_fake->registered[memory] = bytes;
    return g_fake->register_result;
  };
  api.cuMemHostUnregister = [](void* memory) {
    note_call();
    g_fake->registered.erase(memory);
    return g_fake->unregister_result;
  };
  return api;
}

class CudaHostPinnerTest : public ::testing::Test {
 protected:
  CudaHostPinnerTest() {
    g_fake = &fake_;
    t_context = own_context_;
    t_mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  }
  ~CudaHostPinnerTest() override { g_fake = nullptr; }

  void expect_thread_as_before() const {
    EXPECT_EQ(t_context, own_context_);
    EXPECT_EQ(t_mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  }

  static CUcontext context(uintptr_t number) { return reinterpret_cast<CUcontext>(number); }

  FakeDriver fake_;
  const DriverApi api_ = fake_api();
  const CUcontext own_context_ = context(1);
  const CUcontext gpu_context_ = context(2);
  CudaHostPinner pinner_{api_, gpu_context_};
  alignas(4096) char memory_[4096] = {};
};

TEST_F(CudaHostPinnerTest, PinsForEveryContextAndUnpins) {
  ASSERT_TRUE(pinner_.pin(memory_, sizeof memory_).is_ok());
  EXPECT_EQ(fake_.registered.at(memory_), sizeof memory_);
  EXPECT_EQ(fake_.flags_seen, unsigned{CU_MEMHOSTREGISTER_PORTABLE});
  EXPECT_EQ(fake_.context_seen, gpu_context_);
  EXPECT_EQ(fake_.mode_seen, CU_STREAM_CAPTURE_MODE_RELAXED);
  expect_thread_as_before();
  pinner_.unpin(memory_, sizeof memory_);
  EXPECT_TRUE(fake_.registered.empty());
  EXPECT_EQ(fake_.context_seen, gpu_context_);
  EXPECT_EQ(fake_.mode_seen, CU_STREAM_CAPTURE_MODE_RELAXED);
  expect_thread_as_before();
}

TEST_F(CudaHostPinnerTest, LeavesAThreadWithoutContextWithoutOne) {
  std::thread([&] {
    ASSERT_TRUE(pinner_.pin(memory_, sizeof memory_).is_ok());
    EXPECT_EQ(fake_.context_seen, gpu_context_);
    EXPECT_EQ(t_context, nullptr);
    EXPECT_EQ(t_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  }).join();
}

TEST_F(CudaHostPinnerTest, ReportsARefusal) {
  fake_.register_result = CUDA_ERROR_OUT_OF_MEMORY;
  const Status status = pinner_.pin(memory_, sizeof memory_);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(status.message(),
            "Cannot pin 4.00 KiB of host memory: CUDA_ERROR_OF_THE_TEST (as asked).");
  expect_thread_as_before();
}

TEST_F(CudaHostPinnerTest, DoesNotCallInAnotherContext) {
  fake_.set_current_result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  const Status status = pinner_.pin(memory_, sizeof memory_);
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_NE(status.message().find("context"), std::string::npos) << status.message();
  pinner_.unpin(memory_, sizeof memory_);
  EXPECT_EQ(fake_.calls, 0);
  expect_thread_as_before();
}

TEST_F(CudaHostPinnerTest, DoesNotCallWhereItWouldSpoilACapture) {
  fake_.exchange_result = CUDA_ERROR_INVALID_VALUE;
  EXPECT_FALSE(pinner_.pin(memory_, sizeof memory_).is_ok());
  EXPECT_EQ(fake_.calls, 0);
  expect_thread_as_before();
}

TEST_F(CudaHostPinnerTest, SaysWhatCannotBeUnpinned) {
  fake_.unregister_result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  testing::internal::CaptureStderr();
  pinner_.unpin(memory_, sizeof memory_);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("Cannot unpin 4.00 KiB"),
            std::string::npos);
  expect_thread_as_before();
}

}  // namespace
}  // namespace tencache
