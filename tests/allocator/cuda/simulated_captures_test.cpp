// SPDX-License-Identifier: Apache-2.0
//
// Captures of graphs by the simulated driver, which must follow CUDA's rules: what is given to a
// capturing stream becomes a node and waits for a launch, and a call that no capture allows gives
// CUDA's error and invalidates the capture.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/cuda/simulated_driver_parts.h"
#include "support/cuda/simulated_graph.h"
#include "support/cuda/simulated_modules.h"
#include "support/cuda/simulated_streams_fixture.h"

namespace tencache {
namespace {

constexpr size_t kBytes = 4096;

class SimulatedCapturesTest : public SimulatedStreamsFixture {
 protected:
  using Call = std::function<CUresult()>;

  StreamTable& table() { return driver_->parts().streams; }
  CUstream capturing(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    const CUstream made = stream();
    begin(made, mode);
    return made;
  }
  void begin(CUstream stream, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    ASSERT_EQ(table().begin_capture(stream, mode), CUDA_SUCCESS);
  }
  // Ends the capture. Returns null where it was invalidated.
  std::unique_ptr<SimulatedGraph> end(CUstream stream, CUresult expected = CUDA_SUCCESS) {
    CUgraph graph = nullptr;
    EXPECT_EQ(table().end_capture(stream, &graph), expected);
    return std::unique_ptr<SimulatedGraph>(reinterpret_cast<SimulatedGraph*>(graph));
  }
  void launch_once(const SimulatedGraph& graph, CUstream stream) {
    SimulatedExecutable executable(graph);
    EXPECT_EQ(table().launch_graph(reinterpret_cast<CUgraphExec>(&executable), stream),
              CUDA_SUCCESS);
    synchronize(stream);
  }
  // Makes the call on a thread of its own, in that mode.
  CUresult on_other_thread(const Call& call, CUstreamCaptureMode mode) {
    CUresult result = CUDA_SUCCESS;
    std::thread([&] {
      const CurrentContext context(api());
      EXPECT_EQ(api().cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
      result = call();
    }).join();
    return result;
  }
};

TEST_F(SimulatedCapturesTest, WorkOfACapturingStreamRunsWithEachLaunch) {
  start();
  const DeviceBuffer buffer(api(), 2 * kMiB);
  const PinnedBuffer host(api(), kBytes);
  const CUdeviceptr device = buffer.address();
  int runs = 0;
  const auto count = [](void* data) { ++*static_cast<int*>(data); };
  const std::vector<std::function<CUresult(CUstream)>> works = {
      [&](CUstream in) { return api().cuMemsetD8Async(device, 7, kBytes, in); },
      [&](CUstream in) { return api().cuMemcpyDtoHAsync(host.data(), device, kBytes, in); },
      [&](CUstream in) {
        return api().cuMemcpyHtoDAsync(device + kBytes, host.data(), kBytes, in);
      },
      [&](CUstream in) {
        return api().cuMemcpyDtoDAsync(device + 2 * kBytes, device + kBytes, kBytes, in);
      },
      [&](CUstream in) { return api().cuStreamWriteValue64(in, device + 3 * kBytes, 5, 0); },
      [&](CUstream in) { return api().cuStreamWaitValue64(in, device + 3 * kBytes, 5, 0); },
      [&](CUstream in) { return api().cuLaunchHostFunc(in, count, &runs); },
      [&](CUstream in) { return driver_->launch(in, {}, [&runs] { ++runs; }); },
  };
  const CUstream at = capturing();
  for (const auto& work : works) EXPECT_EQ(work(at), CUDA_SUCCESS);
  const std::unique_ptr<SimulatedGraph> graph = end(at);
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(graph->nodes().size(), works.size());
  synchronize(at);
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(buffer.data()[0], 0);
  launch_once(*graph, at);
  launch_once(*graph, at);
  EXPECT_EQ(runs, 4);
  EXPECT_EQ(buffer.data()[3 * kBytes - 1], 7);
}

// The order in which a graph runs is the furthest from that of its capture, to expose programs that
// forget a dependency.
TEST_F(SimulatedCapturesTest, ANodeThatWasCapturedLaterGoesFirstUnlessItDepends) {
  start();
  const CUstream at = capturing();
  const CUstream side = stream();
  std::string order;  // written by one stream's thread, read at the end
  const auto add = [&](CUstream in, char name) { launch(in, [&order, name] { order += name; }); };
  add(at, 'a');
  EXPECT_EQ(api().cuStreamWaitEvent(side, record(at), 0), CUDA_SUCCESS);
  add(side, 'b');
  add(side, 'c');
  add(at, 'd');
  add(at, 'e');
  EXPECT_EQ(api().cuStreamWaitEvent(at, record(side), 0), CUDA_SUCCESS);
  add(at, 'f');
  launch_once(*end(at), at);
  EXPECT_EQ(order, "adebcf");
}

// A service thread, for instance, may make unsafe calls while another thread captures.
TEST_F(SimulatedCapturesTest, UnsafeCallsSpoilWhatTheModesProtect) {
  start();
  std::array<char, kBytes> pageable;
  const CUstream other = stream();
  const CUevent event = record(other);
  synchronize(other);
  const std::string image = simulated_image(90, {});
  CUmodule module = nullptr;
  const std::vector<Call> calls = {
      [&] { return api().cuEventQuery(event); },
      [&] { return api().cuEventSynchronize(event); },
      [&] { return api().cuStreamQuery(other); },
      [&] { return api().cuStreamSynchronize(other); },
      [&] { return api().cuMemHostRegister(pageable.data(), kBytes, 0); },
      [&] { return api().cuMemHostUnregister(pageable.data()); },
      [&] { return api().cuModuleLoadData(&module, image.c_str()); },
      [&] { return api().cuModuleUnload(module); },
  };
  constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
  constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  for (const Call& call : calls) {
    for (const auto mode : {kGlobal, kThreadLocal}) {
      const CUstream at = capturing(mode);
      EXPECT_EQ(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) << "of the thread itself";
      end(at, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    const CUstream at = capturing();
    EXPECT_EQ(on_other_thread(call, kGlobal), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end(at, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  for (const auto mode : {kThreadLocal, kRelaxed}) {
    const CUstream at = capturing();
    for (const Call& call : calls) EXPECT_EQ(on_other_thread(call, mode), CUDA_SUCCESS);
    end(at);
  }
}

TEST_F(SimulatedCapturesTest, OtherModesLetOtherThreadsDoAnything) {
  start();
  const CUevent event = record(nullptr);
  synchronize(nullptr);
  const Call query = [&] { return api().cuEventQuery(event); };
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    const CUstream at = capturing(mode);
    EXPECT_EQ(on_other_thread(query, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    end(at);
  }
}

TEST_F(SimulatedCapturesTest, AnEventOfACaptureStandsForItsNodes) {
  start();
  const CUstream at = capturing();
  const CUstream side = stream();
  const CUevent fork = record(at);
  EXPECT_EQ(api().cuStreamWaitEvent(side, fork, 0), CUDA_SUCCESS) << "it joins";
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(api().cuStreamIsCapturing(side, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(api().cuStreamWaitEvent(at, record(side), 0), CUDA_SUCCESS);
  end(at);
  EXPECT_EQ(api().cuEventQuery(fork), CUDA_ERROR_CAPTURED_EVENT);
  begin(at);
  EXPECT_EQ(api().cuEventQuery(record(at)), CUDA_ERROR_CAPTURED_EVENT) << "in any mode";
  end(at, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(SimulatedCapturesTest, ACaptureIsOverWithTheStreamWhereItBegan) {
  start();
  CUstream origin = nullptr;
  ASSERT_EQ(api().cuStreamCreateWithPriority(&origin, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  begin(origin);
  const CUstream side = stream();
  ASSERT_EQ(api().cuStreamWaitEvent(side, record(origin), 0), CUDA_SUCCESS) << "it joins";
  ASSERT_EQ(api().cuStreamDestroy(origin), CUDA_SUCCESS);
  int runs = 0;
  launch(side, [&runs] { ++runs; });
  synchronize(side);
  EXPECT_EQ(runs, 1);
}

TEST_F(SimulatedCapturesTest, ACaptureDependsOnNothingOutside) {
  start();
  const CUevent outside = record(nullptr);
  const CUstream at = capturing();
  EXPECT_EQ(api().cuStreamWaitEvent(at, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(api().cuEventRecord(outside, at), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  end(at, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(SimulatedCapturesTest, ACapturingStreamIsNotWaitedFor) {
  start();
  CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_EQ(api().cuThreadExchangeStreamCaptureMode(&relaxed), CUDA_SUCCESS);
  const std::vector<std::function<CUresult(CUstream)>> calls = {
      [&](CUstream at) { return api().cuStreamQuery(at); },
      [&](CUstream at) { return api().cuStreamSynchronize(at); },
      [&](CUstream) { return table().synchronize(); },
  };
  for (const auto& call : calls) {
    const CUstream at = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(call(at), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end(at, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  ASSERT_EQ(api().cuThreadExchangeStreamCaptureMode(&relaxed), CUDA_SUCCESS);
}

TEST_F(SimulatedCapturesTest, TheLegacyStreamIsUnusableWhileABlockingStreamCaptures) {
  start();
  const DeviceBuffer buffer(api(), 2 * kMiB);
  CUstream blocking = nullptr;
  ASSERT_EQ(api().cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0), CUDA_SUCCESS);
  streams_.push_back(blocking);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  begin(blocking);
  EXPECT_EQ(api().cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(table().capture_info(nullptr, &status, nullptr, nullptr, nullptr, nullptr, nullptr),
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  end(blocking);
  begin(blocking);
  EXPECT_EQ(api().cuMemsetD8Async(buffer.address(), 1, kBytes, nullptr),
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  end(blocking, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  const CUstream other = capturing();
  EXPECT_EQ(api().cuStreamIsCapturing(nullptr, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  end(other);
}

}  // namespace
}  // namespace tencache
