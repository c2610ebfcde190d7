// SPDX-License-Identifier: Apache-2.0
//
// The streams of the simulated driver, which must behave like the real ones: order within and
// between streams, events, values, host functions and kernels. simulated_copies_test.cpp is the
// suite of copies. No test depends on the speed of the machine: measured times have only lower
// bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/cuda/simulated_driver_parts.h"
#include "support/cuda/simulated_streams_fixture.h"
#include "support/eventually.h"

namespace tencache {
namespace {

using std::chrono::milliseconds;

using SimulatedStreamsTest = SimulatedStreamsFixture;

TEST_F(SimulatedStreamsTest, WorkOfAStreamKeepsItsOrder) {
  start();
  std::vector<int> order;  // written by one stream's thread after the other's, read at the end
  for (const CUstream at : {stream(), CUstream(nullptr)}) {
    order.clear();
    for (int index = 0; index < 100; ++index) {
      launch(at, [&order, index] { order.push_back(index); });
    }
    synchronize(at);
    EXPECT_EQ(order.size(), 100u);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  }
}

TEST_F(SimulatedStreamsTest, NonBlockingStreamsDoNotWaitForEachOtherNorForTheNullStream) {
  start();
  std::latch gate(1);
  const CUstream other = stream();
  launch(nullptr, [&gate] { gate.wait(); });
  launch(other, [] {});
  synchronize(other);
  EXPECT_EQ(api().cuStreamQuery(other), CUDA_SUCCESS);
  EXPECT_EQ(api().cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(api().cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(driver_->unfinished(nullptr), 1u);
  EXPECT_FALSE(driver_->is_idle());
  gate.count_down();
  driver_->wait_until_idle();
  EXPECT_TRUE(driver_->is_idle());
  EXPECT_EQ(api().cuStreamQuery(nullptr), CUDA_SUCCESS);
}

TEST_F(SimulatedStreamsTest, AThreadThatWaitsForRoomKeepsNoOtherFromQueueing) {
  start({.queued_kernels_max = 1});
  CUstream blocking = nullptr;
  ASSERT_EQ(api().cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0), CUDA_SUCCESS);
  streams_.push_back(blocking);
  std::latch gate(1);
  std::latch begun(1);
  launch(nullptr, [&gate] { gate.wait(); });
  std::thread waits([&] {
    const CurrentContext context(api());
    begun.count_down();
    launch(nullptr, [] {});
  });
  begun.wait();
  std::this_thread::sleep_for(milliseconds(20));  // so that it most likely waits
  launch(blocking, [] {});
  gate.count_down();
  waits.join();
  driver_->wait_until_idle();
}

TEST_F(SimulatedStreamsTest, TheNullStreamAndBlockingStreamsWaitForEachOther) {
  start();
  CUstream first = nullptr;
  CUstream last = nullptr;
  for (CUstream* made : {&first, &last}) {
    ASSERT_EQ(api().cuStreamCreateWithPriority(made, CU_STREAM_DEFAULT, 0), CUDA_SUCCESS);
    streams_.push_back(*made);
  }
  std::vector<int> order;  // written by one kernel after another
  driver_->hold(first);
  launch(first, [&order] { order.push_back(1); });
  launch(nullptr, [&order] { order.push_back(2); });
  launch(last, [&order] { order.push_back(3); });
  launch(stream(), [] {});
  EXPECT_TRUE(eventually([&] { return driver_->is_stuck(); }));
  EXPECT_EQ(driver_->unfinished(streams_.back()), 0u) << "a non-blocking one waits for none";
  driver_->let_go();
  synchronize(last);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

// With hold() a test need not rely on a slow device.
TEST_F(SimulatedStreamsTest, HeldStreamWaitsUntilItIsLetGo) {
  start();
  const CUstream at = stream();
  std::atomic<int> done = 0;
  launch(at, [&done] { ++done; });
  synchronize(at);
  driver_->hold(at);
  launch(at, [&done] { ++done; });
  launch(stream(), [&done] { done += 10; });
  EXPECT_TRUE(eventually([&] { return done == 11; })) << done;
  EXPECT_EQ(driver_->unfinished(at), 2u);
  driver_->let_go();
  synchronize(at);
  EXPECT_EQ(done, 12);
  driver_->let_go();  // holds up no later work
  driver_->hold(at);
  launch(at, [&done] { ++done; });
  EXPECT_EQ(api().cuStreamQuery(at), CUDA_ERROR_NOT_READY);
  driver_->let_go();
  synchronize(at);
  EXPECT_EQ(done, 13);
}

// Work that does not wait for a held stream has been done once the driver is stuck.
TEST_F(SimulatedStreamsTest, IsStuckOnceAllThatIsLeftWaitsForWhatIsHeld) {
  start();
  const CUstream held = stream();
  const CUstream waiting = stream();
  EXPECT_FALSE(driver_->is_stuck());
  driver_->hold(held);
  EXPECT_FALSE(driver_->is_stuck()) << "nobody waits for it";
  std::latch gate(1);
  launch(stream(), [&gate] { gate.wait(); });
  EXPECT_EQ(api().cuStreamWaitEvent(waiting, record(held), 0), CUDA_SUCCESS);
  EXPECT_FALSE(driver_->is_stuck()) << "a kernel is running";
  gate.count_down();
  EXPECT_TRUE(eventually([&] { return driver_->is_stuck(); }));
  driver_->let_go();
  synchronize(waiting);
  EXPECT_FALSE(driver_->is_stuck());
}

TEST_F(SimulatedStreamsTest, DestroyedStreamFinishesItsWork) {
  start();
  std::latch gate(1);
  std::atomic<int> done = 0;
  CUstream made = nullptr;
  ASSERT_EQ(api().cuStreamCreateWithPriority(&made, 0, 0), CUDA_SUCCESS);
  launch(made, [&gate] { gate.wait(); });
  for (int index = 0; index < 5; ++index) launch(made, [&done] { ++done; });
  EXPECT_EQ(api().cuStreamDestroy(made), CUDA_SUCCESS);
  EXPECT_EQ(api().cuStreamDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_FALSE(driver_->is_idle()) << "the destroyed one counts";
  gate.count_down();
  driver_->wait_until_idle();
  EXPECT_EQ(done, 5);
}

// The real driver ends the process, too, but without a word about it.
TEST_F(SimulatedStreamsTest, CallsThatNameADestroyedStreamEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  start();
  CUstream gone = nullptr;
  ASSERT_EQ(api().cuStreamCreateWithPriority(&gone, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(api().cuStreamDestroy(gone), CUDA_SUCCESS);
  const CUevent moment = event();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUstream next = stream();
  EXPECT_NE(next, gone);
  EXPECT_DEATH(api().cuStreamIsCapturing(gone, &status), "cuStreamIsCapturing names the stream");
  EXPECT_DEATH(api().cuEventRecord(moment, gone), "cuEventRecord names the stream");
  EXPECT_DEATH(api().cuStreamWaitEvent(gone, moment, 0), "cuStreamWaitEvent names the stream");
  EXPECT_DEATH(api().cuStreamQuery(gone), "cuStreamQuery names the stream");
  EXPECT_DEATH(api().cuStreamDestroy(gone), "cuStreamDestroy names the stream");
  EXPECT_DEATH(driver_->launch(gone, {}, [] {}), "launch names the stream");
}

TEST_F(SimulatedStreamsTest, ANewStreamMayHaveTheHandleOfAnOldOneWhoseWorkGoesOn) {
  start({.reuses_stream_handles = true});
  CUstream old = nullptr;
  ASSERT_EQ(api().cuStreamCreateWithPriority(&old, 0, 0), CUDA_SUCCESS);
  std::latch gate(1);
  launch(old, [&gate] { gate.wait(); });
  ASSERT_EQ(api().cuStreamDestroy(old), CUDA_SUCCESS);
  const CUstream young = stream();
  EXPECT_EQ(young, old);
  launch(young, [] {});
  synchronize(young);  // it is another stream
  EXPECT_FALSE(driver_->is_idle());
  gate.count_down();
  driver_->wait_until_idle();
}

TEST_F(SimulatedStreamsTest, EventHoldsTheMomentItWasRecorded) {
  start();
  std::latch first_gate(1);
  std::latch second_gate(1);
  const CUstream at = stream();
  const CUevent moment = event();
  EXPECT_EQ(api().cuEventQuery(moment), CUDA_SUCCESS) << "never recorded";
  EXPECT_EQ(api().cuEventSynchronize(moment), CUDA_SUCCESS);
  launch(at, [&first_gate] { first_gate.wait(); });
  ASSERT_EQ(api().cuEventRecord(moment, at), CUDA_SUCCESS);
  launch(at, [&second_gate] { second_gate.wait(); });
  EXPECT_EQ(api().cuEventQuery(moment), CUDA_ERROR_NOT_READY);
  first_gate.count_down();
  EXPECT_EQ(api().cuEventSynchronize(moment), CUDA_SUCCESS) << "what came later does not matter";
  EXPECT_EQ(api().cuEventQuery(moment), CUDA_SUCCESS);
  ASSERT_EQ(api().cuEventRecord(moment, at), CUDA_SUCCESS);
  EXPECT_EQ(api().cuEventQuery(moment), CUDA_ERROR_NOT_READY) << "recorded again";
  second_gate.count_down();
  EXPECT_EQ(api().cuEventSynchronize(moment), CUDA_SUCCESS);
  EXPECT_EQ(api().cuStreamQuery(at), CUDA_SUCCESS) << "nothing else was queued";
}

TEST_F(SimulatedStreamsTest, StreamWaitsForTheMomentThatWasRecordedThen) {
  start();
  std::latch first_gate(1);
  std::latch second_gate(1);
  const CUstream producer = stream();
  const CUstream consumer = stream();
  CUevent moment = nullptr;
  ASSERT_EQ(api().cuEventCreate(&moment, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(api().cuStreamWaitEvent(consumer, moment, 0), CUDA_SUCCESS);
  synchronize(consumer);  // the event was never recorded, so that was no wait

  int value = 0;
  int seen = 0;
  launch(producer, [&] {
    first_gate.wait();
    value = 1;
  });
  ASSERT_EQ(api().cuEventRecord(moment, producer), CUDA_SUCCESS);
  ASSERT_EQ(api().cuStreamWaitEvent(consumer, moment, 0), CUDA_SUCCESS);
  launch(consumer, [&] { seen = value; });
  launch(producer, [&second_gate] { second_gate.wait(); });
  ASSERT_EQ(api().cuEventRecord(moment, producer), CUDA_SUCCESS);
  EXPECT_EQ(api().cuEventDestroy(moment), CUDA_SUCCESS) << "while it is waited for";
  EXPECT_EQ(api().cuEventQuery(moment), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(api().cuStreamQuery(consumer), CUDA_ERROR_NOT_READY);
  first_gate.count_down();
  synchronize(consumer);
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(api().cuStreamQuery(producer), CUDA_ERROR_NOT_READY);
  second_gate.count_down();
  synchronize(producer);
}

// The stream is never idle: each kernel waits until the next one is queued. A wait for an idle
// stream would never end.
TEST_F(SimulatedStreamsTest, TheDeviceIsWaitedForWhileAnotherThreadQueuesWork) {
  start();
  const CUstream fed = stream();
  std::atomic<uint64_t> begun = 0;
  std::atomic<uint64_t> queued = 0;
  std::atomic<bool> is_over = false;
  std::thread feeder([&] {
    while (!is_over) {
      const uint64_t number = queued + 1;
      launch(fed, [&, number] {
        begun = number;
        while (queued <= number && !is_over) std::this_thread::yield();
      });
      queued = number;
      while (begun < number && !is_over) std::this_thread::yield();
    }
  });
  while (begun < 2) std::this_thread::yield();
  EXPECT_EQ(driver_->parts().streams.synchronize(), CUDA_SUCCESS);
  is_over = true;
  feeder.join();
  synchronize(fed);
}

TEST_F(SimulatedStreamsTest, EventsTellTheTimeBetweenThem) {
  start();
  std::latch gate(1);
  launch(nullptr, [&gate] { gate.wait(); });
  const CUevent begin = record(nullptr);
  launch(nullptr, milliseconds(20), [] {});
  const CUevent end = record(nullptr);
  float elapsed = 0;
  const CUevent untimed = event(CU_EVENT_DISABLE_TIMING);
  ASSERT_EQ(api().cuEventRecord(untimed, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(api().cuEventElapsedTime(&elapsed, begin, end), CUDA_ERROR_NOT_READY);
  gate.count_down();
  synchronize(nullptr);
  EXPECT_GE(elapsed_ms(begin, end), 19.99);
  EXPECT_EQ(api().cuEventElapsedTime(&elapsed, begin, event()), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(api().cuEventElapsedTime(&elapsed, untimed, end), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(SimulatedStreamsTest, HandlesAndFlagsThatDoNotExistAreRefused) {
  start();
  CUstream no_stream = nullptr;
  CUevent no_event = reinterpret_cast<CUevent>(&no_event);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_EQ(api().cuStreamWaitEvent(nullptr, no_event, 0), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(api().cuEventRecord(no_event, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(api().cuEventSynchronize(no_event), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(api().cuEventDestroy(no_event), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(api().cuEventCreate(&no_event, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuStreamCreateWithPriority(&no_stream, 64, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuLaunchHostFunc(nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuStreamIsCapturing(nullptr, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(SimulatedStreamsTest, HostFunctionRunsInOrderAndMustNotCallTheDriver) {
  start();
  struct Seen {
    const DriverApi* api;
    int value = 0;
    CUresult result = CUDA_SUCCESS;
  } seen = {&api()};
  launch(nullptr, milliseconds(5), [&seen] { seen.value = 5; });
  const auto function = [](void* data) {
    auto* const at = static_cast<Seen*>(data);
    int count = 0;
    at->value *= 2;
    at->result = at->api->cuDeviceGetCount(&count);
  };
  ASSERT_EQ(api().cuLaunchHostFunc(nullptr, function, &seen), CUDA_SUCCESS);
  synchronize(nullptr);
  EXPECT_EQ(seen.value, 10);
  EXPECT_EQ(seen.result, CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(SimulatedStreamsTest, StreamWaitsForAValueInHostOrDeviceMemory) {
  start();
  const DeviceBuffer on_device(api(), 2 * kMiB);
  const PinnedBuffer on_host(api(), 64);
  const CUstream waiting = stream();
  const CUstream writing = stream();
  for (const CUdeviceptr address :
       {on_device.address() + 64, reinterpret_cast<CUdeviceptr>(on_host.data())}) {
    std::atomic_ref<uint64_t> value(*reinterpret_cast<uint64_t*>(address));
    std::atomic<int> passed = 0;
    const auto count = [&passed] { ++passed; };
    ASSERT_EQ(api().cuStreamWaitValue64(waiting, address, 7, CU_STREAM_WAIT_VALUE_GEQ),
              CUDA_SUCCESS);
    launch(waiting, count);
    ASSERT_EQ(api().cuStreamWaitValue64(waiting, address, 7, CU_STREAM_WAIT_VALUE_EQ),
              CUDA_SUCCESS);
    launch(waiting, count);
    value.store(6);
    EXPECT_EQ(api().cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
    value.store(8);
    while (passed == 0) std::this_thread::yield();
    EXPECT_EQ(api().cuStreamQuery(waiting), CUDA_ERROR_NOT_READY) << "8 is not 7";
    ASSERT_EQ(api().cuStreamWriteValue64(writing, address, 7, CU_STREAM_WRITE_VALUE_DEFAULT),
              CUDA_SUCCESS);
    synchronize(waiting);
    EXPECT_EQ(passed, 2);
    synchronize(writing);
  }
}

TEST_F(SimulatedStreamsTest, ValueNeedsAPlaceThatTheDeviceReaches) {
  start();
  DeviceBuffer buffer(api(), 2 * kMiB);
  const CUdeviceptr end = buffer.address() + 2 * kMiB;
  uint64_t pageable = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(&pageable);
  EXPECT_EQ(api().cuStreamWaitValue64(nullptr, address, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuStreamWriteValue64(nullptr, address, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuStreamWaitValue64(nullptr, buffer.address() + 4, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuStreamWaitValue64(nullptr, buffer.address(), 0, CU_STREAM_WAIT_VALUE_NOR),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(api().cuStreamWriteValue64(nullptr, end - 8, 0, 0), CUDA_SUCCESS);
  synchronize(nullptr);
  ASSERT_EQ(buffer.unmap(), CUDA_SUCCESS);
  EXPECT_EQ(api().cuStreamWriteValue64(nullptr, end - 8, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimulatedStreamsTest, KernelKeepsItsStreamBusyAndWorksAtTheEnd) {
  start();
  std::atomic<bool> has_run = false;
  const uint64_t begin_ns = now_ns();
  launch(nullptr, milliseconds(20), [&] {
    EXPECT_GE(now_ns() - begin_ns, 20'000'000u);
    has_run = true;
  });
  synchronize(nullptr);
  EXPECT_TRUE(has_run);
  EXPECT_EQ(driver_->calls("cuStreamSynchronize"), 1u);
  EXPECT_EQ(driver_->calls("cuEventSynchronize"), 0u);
}

TEST_F(SimulatedStreamsTest, StreamTellsWhatBecameOfItsTime) {
  start();
  StreamTable& streams = driver_->parts().streams;
  const CUstream producer = stream();
  const CUstream consumer = stream();
  // Everything is queued before anything begins.
  for (const CUstream at : {producer, consumer}) driver_->hold(at);
  launch(producer, milliseconds(40), [] {});
  const CUevent produced = record(producer);
  const CUevent begin = record(consumer);
  launch(consumer, milliseconds(10), [] {});
  const CUevent stalls = record(consumer);
  ASSERT_EQ(api().cuStreamWaitEvent(consumer, produced, 0), CUDA_SUCCESS);
  launch(consumer, milliseconds(10), [] {});
  const CUevent done = record(consumer);
  driver_->let_go();
  synchronize(consumer);
  // The consumer stalls from the end of its first kernel to the end of the producer's.
  const double stalled_ms = std::max(elapsed_ms(stalls, produced), 0.0);
  StreamTimes times = streams.times(consumer);
  EXPECT_EQ(times.kernels, 2u);
  EXPECT_NEAR(static_cast<double>(times.stalled_ns) * 1e-6, stalled_ms, 1e-3);
  EXPECT_EQ(times.starved_ns, 0u);
  EXPECT_GE(times.busy_ns, 20'000'000u);
  std::latch is_recorded(1);  // behind the kernel, however slow this thread is
  launch(consumer, milliseconds(1), [&is_recorded] { is_recorded.wait(); });
  const CUevent last = record(consumer);
  is_recorded.count_down();
  synchronize(consumer);
  times = streams.times(consumer);
  EXPECT_EQ(times.kernels, 3u);
  EXPECT_NEAR(static_cast<double>(times.stalled_ns) * 1e-6, stalled_ms, 1e-3)
      << "nothing stood before the last one";
  EXPECT_GT(times.starved_ns, 0u);
  EXPECT_NEAR(static_cast<double>(times.busy_ns + times.starved_ns + times.stalled_ns) * 1e-6,
              elapsed_ms(begin, last), 1e-3);
  EXPECT_GT(elapsed_ms(done, last), 0);
  streams.reset_times();
  EXPECT_EQ(streams.times(consumer).kernels, 0u);
}

TEST_F(SimulatedStreamsTest, WorkThatComesFirstKeepsItsTimeOrIsLate) {
  start({.works_first = true});
  StreamTable& streams = driver_->parts().streams;
  std::latch gate(1);
  launch(nullptr, std::chrono::hours(1), [&gate] { gate.count_down(); });
  gate.wait();
  EXPECT_EQ(api().cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY) << "worked, and keeps its time";
  EXPECT_EQ(streams.late(), 0u);
  const CUstream at = stream();
  const CUevent begin = record(at);
  launch(at, std::chrono::nanoseconds(1), [] {
    const uint64_t begin_ns = thread_work_ns();
    while (thread_work_ns() < begin_ns + 100) {
    }
  });
  const CUevent end = record(at);
  synchronize(at);
  EXPECT_EQ(streams.late(), 1u);
  EXPECT_GE(elapsed_ms(begin, end), 100e-6) << "a late work takes what it took";
  EXPECT_GT(streams.lag_ns(), 0u);
  streams.reset_times();
  EXPECT_EQ(streams.late(), 0u);
  EXPECT_EQ(streams.lag_ns(), 0u);
}

TEST_F(SimulatedStreamsTest, EndOfTheDriverDropsWork) {
  start();
  const CUstream waiting = stream();
  const CUstream behind = stream();
  uint64_t value = 0;
  ASSERT_EQ(api().cuMemHostRegister(&value, sizeof(value), 0), CUDA_SUCCESS);
  std::atomic<bool> has_run = false;
  ASSERT_EQ(api().cuStreamWaitValue64(waiting, reinterpret_cast<CUdeviceptr>(&value), 1,
                                      CU_STREAM_WAIT_VALUE_EQ),
            CUDA_SUCCESS);
  ASSERT_EQ(api().cuStreamWaitEvent(behind, record(waiting), 0), CUDA_SUCCESS);
  launch(behind, [&has_run] { has_run = true; });
  launch(nullptr, std::chrono::hours(1), [&has_run] { has_run = true; });
  streams_.clear();
  events_.clear();
  context_.reset();
  driver_.reset();
  EXPECT_FALSE(has_run);
}

}  // namespace
}  // namespace tencache
