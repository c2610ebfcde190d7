// SPDX-License-Identifier: Apache-2.0
//
// Where the driver must not be called: in a forked child, and once the process exits. Objects of
// the cuda backend are made, then used and destroyed there; the simulated driver counts the calls.
// A process that exits stays one, so tests of exits run in fresh processes. The last tests look at
// the state in which a call scope leaves its thread.
#include "platform/cuda/driver_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "base/units.h"
#include "platform/cuda/call_scope.h"
#include "platform/cuda/copy_stream.h"
#include "platform/cuda/device_arena.h"
#include "platform/cuda/frame_pool.h"
#include "platform/cuda/host_pinner.h"
#include "platform/cuda/stream_mark.h"
#include "support/child_process.h"
#include "support/cuda/call_script.h"
#include "support/cuda/simulated_driver.h"

namespace tencache {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kUnit = 2 * kMiB;

template <typename T>
T value_of(Result<T> result) {
  EXPECT_TRUE(result.is_ok()) << result.status().message();
  return std::move(result).value();
}

// One object of each kind, in use.
struct DriverObjects {
  explicit DriverObjects(const DriverApi& api)
      : gpu(value_of(Gpu::open(api, 0))),
        pool(std::make_unique<FramePool>(*gpu, 64 * kMiB)),
        arena(value_of(DeviceArena::reserve(*gpu, 64 * kMiB))),
        marks(std::make_unique<StreamMarks>(*gpu)),
        stream(value_of(CopyStream::create(*gpu, *marks))),
        pinner(std::make_unique<CudaHostPinner>(api, gpu->context())),
        frame(value_of(pool->take(kUnit))),
        mark(value_of(stream->mark())) {
    const Frame waiting = value_of(pool->take(2 * kUnit));
    pool->give_back(waiting);
    const FramePlace place = {arena->base(), frame};
    EXPECT_TRUE(arena->map({&place, 1}).is_ok());
    EXPECT_TRUE(pinner->pin(memory, sizeof memory).is_ok());
  }
  // Ends everything as a program does that may still call the driver.
  void finish() {
    EXPECT_TRUE(mark.wait().is_ok());
    mark = StreamMark();
    EXPECT_TRUE(arena->unmap(arena->base(), kUnit).is_ok());
    pool->give_back(frame);
  }
  // Call it after finish(), or where the driver must not be called; objects in use then stay so.
  void destroy_all() {
    pinner->unpin(memory, sizeof memory);
    stream.reset();
    marks.reset();
    mark = StreamMark();
    arena.reset();
    pool.reset();
    gpu.reset();
  }

  std::unique_ptr<Gpu> gpu;
  std::unique_ptr<FramePool> pool;
  std::unique_ptr<DeviceArena> arena;
  std::unique_ptr<StreamMarks> marks;
  std::unique_ptr<CopyStream> stream;
  std::unique_ptr<CudaHostPinner> pinner;
  Frame frame;
  StreamMark mark;
  alignas(4096) char memory[4096] = {};
};

uint64_t all_calls(const SimulatedDriver& driver) {
  uint64_t calls = 0;
  for (const std::string_view name : kCudaFunctionNames) calls += driver.calls(name);
  return calls;
}

void expect_refused(const Status& status, const char* reason) {
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.message();
  EXPECT_THAT(status.message(), HasSubstr(reason));
}

// Expects that everything is refused and destroyed silently, without a call of the driver.
void expect_no_driver(const SimulatedDriver& driver, DriverObjects& objects, const char* reason) {
  const uint64_t calls_before = all_calls(driver);
  testing::internal::CaptureStderr();
  {
    const CallScope scope(driver.api(), objects.gpu->context());
    expect_refused(scope.status(), reason);
  }
  expect_refused(Gpu::open(driver.api(), 0).status(), reason);
  expect_refused(objects.pool->take(2 * kUnit).status(), reason);
  expect_refused(objects.pool->take(kUnit).status(), reason);
  EXPECT_EQ(objects.pool->trim(kUnit), 0u);
  expect_refused(DeviceArena::reserve(*objects.gpu, kUnit).status(), reason);
  expect_refused(objects.arena->unmap(objects.arena->base(), kUnit), reason);
  expect_refused(objects.marks->make(nullptr).status(), reason);
  expect_refused(objects.mark.is_reached().status(), reason);
  expect_refused(objects.mark.wait(), reason);
  expect_refused(CopyStream::create(*objects.gpu, *objects.marks).status(), reason);
  expect_refused(objects.stream->to_device(objects.arena->base(), objects.memory, 64), reason);
  expect_refused(objects.pinner->pin(objects.memory, sizeof objects.memory), reason);
  objects.destroy_all();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(all_calls(driver), calls_before);
}

TEST(DriverUseTest, AForkedChildDoesNotCallTheParentsDriver) {
  SimulatedDriver driver;
  DriverObjects objects(driver.api());
  EXPECT_EQ(run_in_child([&] { expect_no_driver(driver, objects, "in a forked child"); }), 0);
  EXPECT_TRUE(may_call_driver()) << "this is the parent";
  objects.finish();
  const uint64_t calls_before = all_calls(driver);
  objects.destroy_all();
  EXPECT_GT(all_calls(driver), calls_before);
  EXPECT_EQ(driver.leaks(), "");
}

TEST(DriverUseTest, AGrandchildDoesNotEither) {
  SimulatedDriver driver;
  DriverObjects objects(driver.api());
  EXPECT_EQ(run_in_child([&] {
              const auto body = [&] { expect_no_driver(driver, objects, "in a forked child"); };
              EXPECT_EQ(run_in_child(body), 0);
            }),
            0);
  objects.finish();
  objects.destroy_all();
}

TEST(DriverUseTest, AChildOfAProcessThatHasNotCalledItHasItsOwn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [] {
    const int in_child = run_in_child([] {
      SimulatedDriver driver;
      DriverObjects objects(driver.api());
      objects.finish();
      objects.destroy_all();
      EXPECT_EQ(driver.leaks(), "");
    });
    std::_Exit(in_child);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

// An object that lives to the end of the process, then uses the driver or expects that it must
// not be used. The exit code tells whether that went well, since a failed expectation in an exit
// handler does not change the exit code by itself.
class LastWord {
 public:
  explicit LastWord(bool expects_calls) : expects_calls_(expects_calls) {}
  ~LastWord() {
    if (expects_calls_) {
      objects_->finish();
      objects_->destroy_all();
      if (driver_->leaks().empty() && !testing::Test::HasFailure()) return;
    } else {
      expect_no_driver(*driver_, *objects_, "the process is exiting");
      if (!testing::Test::HasFailure()) std::_Exit(0);
    }
    fflush(nullptr);
    std::_Exit(1);
  }
  LastWord(const LastWord&) = delete;
  LastWord& operator=(const LastWord&) = delete;

  void watch(SimulatedDriver* driver, DriverObjects* objects) {
    driver_ = driver;
    objects_ = objects;
  }

 private:
  const bool expects_calls_;
  SimulatedDriver* driver_ = nullptr;
  DriverObjects* objects_ = nullptr;
};

// The driver's own exit handler runs somewhere between handlers registered before it was loaded and
// later ones.
TEST(DriverUseTest, ExitHandlersOfBeforeTheDriverWasLoadedDoNotCallIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [] {
    static LastWord last_word(false);
    auto* driver = new SimulatedDriver;  // lives on, as the real driver's library does
    last_word.watch(driver, new DriverObjects(driver->api()));
    std::exit(2);  // the last word changes it
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

TEST(DriverUseTest, ExitHandlersOfLaterOnStillMayCallIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [] {
    auto* driver = new SimulatedDriver;
    static LastWord last_word(true);
    last_word.watch(driver, new DriverObjects(driver->api()));
    std::exit(0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

TEST(DriverUseTest, ADriverThatIsShutDownIsNotCalledAgain) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* name : {"cuMemRelease", "cuCtxGetCurrent", "cuMemHostUnregister"}) {
    SCOPED_TRACE(name);
    const auto body = [name] {
      SimulatedDriver driver;
      DriverObjects objects(driver.api());
      driver.fail(name, 1, CUDA_ERROR_DEINITIALIZED);
      testing::internal::CaptureStderr();
      objects.pinner->unpin(objects.memory, sizeof objects.memory);
      objects.pool->trim(2 * kUnit);
      EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
      expect_no_driver(driver, objects, "the process is exiting");
      std::_Exit(testing::Test::HasFailure() ? 1 : 0);
    };
    EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
  }
}

TEST(DriverUseTest, TheStatusOfADriverThatIsShutDownAsksItForNoText) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [] {
    SimulatedDriver driver;
    const Status status = cuda_status(driver.api(), CUDA_ERROR_DEINITIALIZED, "Cannot copy");
    expect_refused(status, "Cannot copy: the process is exiting");
    EXPECT_EQ(driver.calls("cuGetErrorName"), 0u);
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

class CallScopeTest : public ::testing::Test {
 protected:
  CallScopeTest() : gpu_(value_of(Gpu::open(driver_.api(), 0))) {}

  // Expects the state that the calling thread had before: no context, and the mode of every new
  // thread.
  void expect_thread_as_before() {
    CUcontext context = nullptr;
    EXPECT_EQ(driver_.api().cuCtxGetCurrent(&context), CUDA_SUCCESS);
    EXPECT_EQ(context, nullptr);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    EXPECT_EQ(driver_.api().cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  }

  SimulatedDriver driver_;
  std::unique_ptr<Gpu> gpu_;
};

TEST_F(CallScopeTest, PutsTheContextBackWhenTheCaptureModeIsRefused) {
  driver_.fail("cuThreadExchangeStreamCaptureMode", 1, CUDA_ERROR_UNKNOWN);
  {
    const CallScope scope(driver_.api(), gpu_->context());
    EXPECT_EQ(scope.status().code(), StatusCode::kIoError);
  }
  expect_thread_as_before();
}

// The unchanged table. A plain function pointer in another table can reach it here.
const DriverApi* g_real = nullptr;

// The driver also reports errors of earlier work from calls that succeeded themselves.
TEST_F(CallScopeTest, PutsTheCaptureModeBackThatAFailedCallHasChanged) {
  g_real = &driver_.api();
  DriverApi api = driver_.api();
  api.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* mode) {
    EXPECT_EQ(g_real->cuThreadExchangeStreamCaptureMode(mode), CUDA_SUCCESS);
    return CUDA_ERROR_LAUNCH_FAILED;
  };
  {
    const CallScope scope(api, gpu_->context());
    EXPECT_FALSE(scope.status().is_ok());
  }
  expect_thread_as_before();
}

TEST_F(CallScopeTest, RestoringGoesOnAfterAnError) {
  {
    const CallScope scope(driver_.api(), gpu_->context());
    ASSERT_TRUE(scope.status().is_ok());
    driver_.fail("cuThreadExchangeStreamCaptureMode", 1, CUDA_ERROR_LAUNCH_FAILED);
  }
  CUcontext context = gpu_->context();
  EXPECT_EQ(driver_.api().cuCtxGetCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(context, nullptr);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  driver_.api().cuThreadExchangeStreamCaptureMode(&mode);
}

TEST_F(CallScopeTest, LeavesARelaxedThreadRelaxed) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver_.api().cuThreadExchangeStreamCaptureMode(&mode);
  { const CallScope scope(driver_.api(), gpu_->context()); }
  driver_.api().cuThreadExchangeStreamCaptureMode(&mode);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
}

}  // namespace
}  // namespace tencache
