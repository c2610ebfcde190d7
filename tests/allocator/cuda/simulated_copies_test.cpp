// SPDX-License-Identifier: Apache-2.0
//
// The copies of the simulated driver, which must behave like the real ones: directions and their
// engines, when each check is made, host memory of each kind, and memory that is unmapped while it
// is used. No test depends on the speed of the machine: measured times have only lower bounds, or
// come from events, whose times follow from the rates.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/cuda/simulated_driver_parts.h"
#include "support/cuda/simulated_streams_fixture.h"
#include "support/eventually.h"

namespace tencache {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kGranule = 2 * kMiB;

class SimulatedCopiesTest : public SimulatedStreamsFixture {
 protected:
  // The events before and after a copy of all bytes of a buffer.
  struct Timed {
    CUevent begin;
    CUevent end;
  };
  Timed copy_to_device(const DeviceBuffer& target, const PinnedBuffer& source, CUstream stream) {
    const CUevent begin = record(stream);
    EXPECT_EQ(api().cuMemcpyHtoDAsync(target.address(), source.data(), source.bytes(), stream),
              CUDA_SUCCESS);
    return {begin, record(stream)};
  }
  Timed copy_to_host(const PinnedBuffer& target, const DeviceBuffer& source, CUstream stream) {
    const CUevent begin = record(stream);
    EXPECT_EQ(api().cuMemcpyDtoHAsync(target.data(), source.address(), target.bytes(), stream),
              CUDA_SUCCESS);
    return {begin, record(stream)};
  }
};

TEST_F(SimulatedCopiesTest, BytesGoRound) {
  start();
  const DeviceBuffer first(api(), kGranule);
  const DeviceBuffer second(api(), kGranule);
  const PinnedBuffer source(api(), 5000);
  const PinnedBuffer target(api(), 5000);
  for (size_t index = 0; index < 5000; ++index) source.data()[index] = static_cast<char>(index);
  const CUdeviceptr middle = first.address() + 12345;
  ASSERT_EQ(api().cuMemcpyHtoDAsync(middle, source.data(), 5000, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(api().cuMemcpyDtoDAsync(second.address(), middle, 5000, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(api().cuMemsetD8Async(second.address() + 10, 0xAB, 20, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(api().cuMemcpyDtoHAsync(target.data(), second.address(), 5000, nullptr), CUDA_SUCCESS);
  synchronize(nullptr);
  EXPECT_EQ(memcmp(target.data(), source.data(), 10), 0);
  EXPECT_EQ(static_cast<unsigned char>(target.data()[29]), 0xAB);
  EXPECT_EQ(memcmp(target.data() + 30, source.data() + 30, 4970), 0);
}

TEST_F(SimulatedCopiesTest, WordsOf32BitsAreSetAndWritten) {
  start();
  const DeviceBuffer buffer(api(), kGranule);
  const CUdeviceptr end = buffer.address() + kGranule;
  StreamTable& streams = driver_->parts().streams;
  ASSERT_EQ(streams.set_words(buffer.address(), 0x01020304, kGranule / 4, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(streams.write_value32(nullptr, buffer.address() + 4, 0x0A0B0C0D, 0), CUDA_SUCCESS);
  EXPECT_EQ(streams.synchronize(), CUDA_SUCCESS);
  const auto* words = reinterpret_cast<const uint32_t*>(buffer.data());
  EXPECT_EQ(words[0], 0x01020304u);
  EXPECT_EQ(words[1], 0x0A0B0C0Du);
  EXPECT_EQ(words[2], 0x01020304u) << "no more than 32 bits";
  EXPECT_EQ(words[kGranule / 4 - 1], 0x01020304u);
  EXPECT_EQ(streams.set_words(end - 4, 1, 2, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(streams.set_words(buffer.address() + 2, 1, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(streams.write_value32(nullptr, end, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(streams.write_value32(nullptr, end - 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimulatedCopiesTest, DeviceRangeIsCheckedAtTheCall) {
  start();
  DeviceBuffer buffer(api(), kGranule);
  const PinnedBuffer host(api(), 100);
  const CUdeviceptr end = buffer.address() + kGranule;
  EXPECT_EQ(api().cuMemcpyHtoDAsync(end - 99, host.data(), 100, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemcpyDtoHAsync(host.data(), end - 99, 100, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemcpyDtoDAsync(end - 99, buffer.address(), 100, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemsetD8Async(end - 99, 1, 100, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemcpyHtoDAsync(end, host.data(), UINT64_MAX, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemcpyHtoDAsync(end - 100, host.data(), 100, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemcpyHtoDAsync(buffer.address(), buffer.data() + 4096, 100, nullptr),
            CUDA_ERROR_INVALID_VALUE)
      << "device memory is not the host's";
  synchronize(nullptr);

  ASSERT_EQ(buffer.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemsetD8Async(buffer.address(), 1, 100, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemcpyDtoHAsync(host.data(), buffer.address(), 100, nullptr), CUDA_SUCCESS);
  synchronize(nullptr);
  ASSERT_EQ(buffer.unmap(), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemcpyDtoHAsync(host.data(), buffer.address(), 100, nullptr),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimulatedCopiesTest, ACopyToPageableMemoryMakesTheCallWait) {
  start();
  const DeviceBuffer buffer(api(), kGranule);
  std::vector<char> pageable(100, 'x');
  std::atomic<bool> has_run = false;
  launch(nullptr, milliseconds(10), [&has_run] { has_run = true; });
  ASSERT_EQ(api().cuMemsetD8Async(buffer.address(), 'y', 100, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(api().cuMemcpyDtoHAsync(pageable.data(), buffer.address(), 100, nullptr), CUDA_SUCCESS);
  EXPECT_TRUE(has_run) << "the copy comes after what is queued, and the call after the copy";
  EXPECT_EQ(pageable[99], 'y');
}

TEST_F(SimulatedCopiesTest, ACopyFromPageableMemoryIsStaged) {
  start();
  const DeviceBuffer buffer(api(), kGranule);
  memset(buffer.data(), 'a', 100);
  std::vector<char> pageable(100, 'x');
  const CUstream at = stream();
  driver_->hold(at);
  ASSERT_EQ(api().cuMemcpyHtoDAsync(buffer.address(), pageable.data(), 100, at), CUDA_SUCCESS);
  EXPECT_EQ(buffer.data()[99], 'a') << "the call has returned before the copy";
  pageable.assign(100, 'z');
  driver_->let_go();
  synchronize(at);
  EXPECT_EQ(buffer.data()[99], 'x') << "the source may change after the call";
}

TEST_F(SimulatedCopiesTest, RegisteredMemoryLetsTheCallReturn) {
  start();
  const DeviceBuffer buffer(api(), kGranule);
  const PinnedBuffer host(api(), 100);
  std::latch gate(1);
  launch(nullptr, [&gate] { gate.wait(); });
  ASSERT_EQ(api().cuMemcpyHtoDAsync(buffer.address(), host.data(), 100, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(driver_->unfinished(nullptr), 2u);
  gate.count_down();
  synchronize(nullptr);
}

TEST_F(SimulatedCopiesTest, HostRangeLiesInOneRegistrationOrInNone) {
  start();
  const DeviceBuffer buffer(api(), kGranule);
  std::vector<char> memory(3000);
  char* const begin = memory.data();
  ASSERT_EQ(api().cuMemHostRegister(begin, 1000, 0), CUDA_SUCCESS);
  ASSERT_EQ(api().cuMemHostRegister(begin + 1000, 1000, 0), CUDA_SUCCESS);
  const auto copy = [&](char* source, size_t bytes) {
    return api().cuMemcpyHtoDAsync(buffer.address(), source, bytes, nullptr);
  };
  EXPECT_EQ(copy(begin, 1000), CUDA_SUCCESS);
  EXPECT_EQ(copy(begin + 1500, 500), CUDA_SUCCESS);
  EXPECT_EQ(copy(begin + 500, 1000), CUDA_ERROR_INVALID_VALUE) << "two registrations";
  EXPECT_EQ(copy(begin + 1500, 1000), CUDA_ERROR_INVALID_VALUE) << "half of it registered";
  EXPECT_EQ(copy(begin + 2000, 1000), CUDA_SUCCESS) << "pageable";
  synchronize(nullptr);
  EXPECT_EQ(api().cuMemHostUnregister(begin), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemHostUnregister(begin + 1000), CUDA_SUCCESS);
}

TEST_F(SimulatedCopiesTest, EmptyCopyIsNone) {
  start();
  const DeviceBuffer buffer(api(), kGranule);
  EXPECT_EQ(api().cuMemcpyHtoDAsync(buffer.address(), nullptr, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemsetD8Async(buffer.address(), 1, 0, nullptr), CUDA_SUCCESS);
  EXPECT_TRUE(driver_->is_idle());
}

// A copy of 1 MiB at 64 MiB/s takes 15.625 ms, and its latency adds 1 ms. Times of events are exact
// except for rounding to nanoseconds and the processor's work, which can only add to them.
constexpr double kCopyMs = 16.62;
const SimulatedDriverConfig kSlow = {.to_device_bytes_per_s = 64 * kMiB,
                                     .to_host_bytes_per_s = 64 * kMiB,
                                     .on_device_bytes_per_s = 64 * kMiB,
                                     .copy_latency_ns = 1'000'000};

TEST_F(SimulatedCopiesTest, OneEngineServesADirectionForAllStreams) {
  start(kSlow);
  const DeviceBuffer first(api(), kGranule);
  const DeviceBuffer second(api(), kGranule);
  const PinnedBuffer host(api(), kMiB);
  const uint64_t begin_ns = now_ns();
  const Timed one = copy_to_device(first, host, stream());
  const Timed other = copy_to_device(second, host, stream());
  driver_->wait_until_idle();
  EXPECT_GE(static_cast<double>(now_ns() - begin_ns) * 1e-6, 2 * kCopyMs);
  EXPECT_GE(elapsed_ms(one.begin, one.end), kCopyMs);
  EXPECT_GE(elapsed_ms(other.begin, other.end), kCopyMs);
  EXPECT_GE(std::abs(elapsed_ms(one.end, other.end)), kCopyMs) << "one after the other";
}

TEST_F(SimulatedCopiesTest, DirectionsWorkSideBySide) {
  start(kSlow);
  const DeviceBuffer first(api(), kGranule);
  const DeviceBuffer second(api(), kGranule);
  const PinnedBuffer source(api(), kMiB);
  const PinnedBuffer target(api(), kMiB);
  std::latch gate(1);
  // Both streams begin at one moment of the device.
  const CUstream up = stream();
  const CUstream down = stream();
  launch(nullptr, [&gate] { gate.wait(); });
  const CUevent begin = record(nullptr);
  ASSERT_EQ(api().cuStreamWaitEvent(up, begin, 0), CUDA_SUCCESS);
  ASSERT_EQ(api().cuStreamWaitEvent(down, begin, 0), CUDA_SUCCESS);
  const Timed to_device = copy_to_device(first, source, up);
  const Timed to_host = copy_to_host(target, second, down);
  gate.count_down();
  driver_->wait_until_idle();
  const double both_ms = std::max(elapsed_ms(begin, to_device.end), elapsed_ms(begin, to_host.end));
  EXPECT_GE(both_ms, kCopyMs);
  EXPECT_LT(both_ms, 2 * kCopyMs);
}

TEST_F(SimulatedCopiesTest, CopiesOnTheDeviceCrossTheLinkToHostMemory) {
  // Only the direction to the host has a rate, so only that copy takes time.
  start({.to_host_bytes_per_s = 64 * kMiB});
  const DeviceBuffer first(api(), kGranule);
  const DeviceBuffer second(api(), kGranule);
  const DeviceBuffer cold(api(), kGranule, {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0});
  const CUevent begin = record(nullptr);
  ASSERT_EQ(api().cuMemcpyDtoDAsync(second.address(), first.address(), kMiB, nullptr),
            CUDA_SUCCESS);
  ASSERT_EQ(api().cuMemcpyDtoDAsync(second.address(), cold.address(), kMiB, nullptr), CUDA_SUCCESS);
  const CUevent before = record(nullptr);
  ASSERT_EQ(api().cuMemcpyDtoDAsync(cold.address(), first.address(), kMiB, nullptr), CUDA_SUCCESS);
  const CUevent after = record(nullptr);
  EXPECT_EQ(api().cuMemcpyHtoDAsync(first.address(), cold.data(), kMiB, nullptr), CUDA_SUCCESS)
      << "mapped host memory is the host's too";
  synchronize(nullptr);
  EXPECT_GE(elapsed_ms(before, after), 15.62);
  EXPECT_GE(elapsed_ms(begin, after), elapsed_ms(before, after));
}

// With hold_copies() a test need not rely on a slow link.
TEST_F(SimulatedCopiesTest, HeldCopiesBeginWhenTheyAreLetGo) {
  start(kSlow);
  const DeviceBuffer buffer(api(), kGranule);
  const DeviceBuffer other_buffer(api(), kGranule);
  const PinnedBuffer host(api(), kMiB);
  const PinnedBuffer other_host(api(), kMiB);
  const CUstream first = stream();
  const CUstream second = stream();
  driver_->hold_copies(1);
  copy_to_device(buffer, host, first);
  synchronize(first);
  copy_to_host(host, buffer, first);
  copy_to_device(other_buffer, other_host, second);
  std::atomic<bool> has_run = false;
  launch(stream(), [&has_run] { has_run = true; });
  EXPECT_TRUE(eventually([&] { return has_run.load(); })) << "a kernel is no copy";
  std::this_thread::sleep_for(milliseconds(20));  // longer than a copy takes
  for (const CUstream held : {first, second}) {
    EXPECT_EQ(api().cuStreamQuery(held), CUDA_ERROR_NOT_READY);
  }
  const uint64_t let_go_ns = now_ns();
  driver_->let_go();
  synchronize(first);
  synchronize(second);
  EXPECT_GE(static_cast<double>(now_ns() - let_go_ns) * 1e-6, kCopyMs);
  copy_to_device(buffer, host, second);
  synchronize(second);  // nothing is held any more
}

// ---- Memory that goes while it is used

class SimulatedFaultTest : public SimulatedCopiesTest {
 protected:
  // Takes memory from a kernel that has begun and that writes there afterwards.
  void expect_fault_when(const std::function<CUresult(DeviceBuffer&)>& take) {
    start();
    DeviceBuffer buffer(api(), kGranule);
    std::latch has_begun(1);
    std::latch gate(1);
    ASSERT_EQ(driver_->launch(nullptr, {{buffer.address(), kGranule}},
                              [&] {
                                has_begun.count_down();
                                gate.wait();
                                memset(buffer.data(), 1, kGranule);
                              }),
              CUDA_SUCCESS);
    has_begun.wait();
    EXPECT_EQ(take(buffer), CUDA_SUCCESS);
    gate.count_down();
    expect_illegal_address(nullptr);
  }
};

TEST_F(SimulatedFaultTest, QueuedCopyThatFindsItsRangeUnmappedFailsTheContext) {
  start();
  DeviceBuffer buffer(api(), kGranule);
  const PinnedBuffer host(api(), 100);
  const CUstream at = stream();
  std::latch gate(1);
  std::atomic<bool> has_run = false;
  launch(at, [&gate] { gate.wait(); });
  ASSERT_EQ(api().cuMemcpyHtoDAsync(buffer.address(), host.data(), 100, at), CUDA_SUCCESS);
  launch(at, [&has_run] { has_run = true; });
  const CUevent end = record(at);
  EXPECT_EQ(buffer.unmap(), CUDA_SUCCESS) << "the call is legal";
  gate.count_down();
  EXPECT_EQ(api().cuEventSynchronize(end), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(has_run) << "what is queued behind is dropped";
  expect_illegal_address(at);
}

TEST_F(SimulatedFaultTest, QueuedWorkThatFindsItsHostMemoryUnregisteredFailsTheContext) {
  enum { kCopy, kWrite, kWait };
  for (const int work : {kCopy, kWrite, kWait}) {
    has_failed_ = false;
    streams_.clear();
    context_.reset();
    driver_.reset();
    start();
    std::vector<uint64_t> memory(512, 1);
    const auto address = reinterpret_cast<CUdeviceptr>(memory.data());
    const uint64_t bytes = memory.size() * sizeof(uint64_t);
    const DeviceBuffer buffer(api(), kGranule);
    const CUstream at = stream();
    driver_->hold(at);
    ASSERT_EQ(api().cuMemHostRegister(memory.data(), bytes, 0), CUDA_SUCCESS);
    if (work == kCopy) {
      EXPECT_EQ(api().cuMemcpyDtoHAsync(memory.data(), buffer.address(), bytes, at), CUDA_SUCCESS);
    } else if (work == kWrite) {
      EXPECT_EQ(api().cuStreamWriteValue64(at, address, 0, 0), CUDA_SUCCESS);
    } else {
      EXPECT_EQ(api().cuStreamWaitValue64(at, address, 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
    }
    ASSERT_EQ(api().cuMemHostUnregister(memory.data()), CUDA_SUCCESS);
    driver_->let_go();
    expect_illegal_address(at);
    EXPECT_EQ(memory[0], 1u) << work;
  }
}

TEST_F(SimulatedFaultTest, RunningCopyWhoseRangeIsUnmappedFailsTheContext) {
  start({.to_host_bytes_per_s = kKiB});  // slow enough to run as long as the test needs
  DeviceBuffer buffer(api(), kGranule);
  const PinnedBuffer host(api(), 100 * kKiB);
  std::atomic<bool> has_begun = false;
  launch(nullptr, [&has_begun] { has_begun = true; });
  copy_to_host(host, buffer, nullptr);
  while (!has_begun || driver_->unfinished(nullptr) > 2) std::this_thread::yield();
  EXPECT_EQ(buffer.unmap(), CUDA_SUCCESS);
  expect_illegal_address(nullptr);
}

TEST_F(SimulatedFaultTest, KernelFailsTheContextWhenWhatItDeclaredIsNotThere) {
  start();
  DeviceBuffer buffer(api(), kGranule);
  std::atomic<bool> has_run = false;
  ASSERT_EQ(buffer.unmap(), CUDA_SUCCESS);
  EXPECT_EQ(driver_->launch(nullptr, {{buffer.address(), 100}}, [&has_run] { has_run = true; }),
            CUDA_SUCCESS)
      << "no launch looks at addresses";
  driver_->wait_until_idle();
  EXPECT_FALSE(has_run);
  expect_illegal_address(nullptr);
}

TEST_F(SimulatedFaultTest, KernelMayBeQueuedBeforeItsMemoryIsThere) {
  start();
  std::latch gate(1);
  launch(nullptr, [&gate] { gate.wait(); });
  auto old = std::make_unique<DeviceBuffer>(api(), kGranule);
  const CUdeviceptr address = old->address();
  ASSERT_EQ(driver_->launch(nullptr, {{address, 100}},
                            [address] { memset(reinterpret_cast<char*>(address), 3, 100); }),
            CUDA_SUCCESS);
  ASSERT_EQ(old->unmap(), CUDA_SUCCESS);
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(api().cuMemCreate(&handle, kGranule, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(api().cuMemMap(address, kGranule, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(old->set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  gate.count_down();
  synchronize(nullptr);
  EXPECT_EQ(old->data()[99], 3);
  EXPECT_EQ(old->unmap(), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(SimulatedFaultTest, RunningKernelThatLosesItsMemoryFailsTheContextAndEnds) {
  expect_fault_when([](DeviceBuffer& buffer) { return buffer.unmap(); });
}

TEST_F(SimulatedFaultTest, AccessThatIsTakenFromARunningKernelFailsTheContext) {
  expect_fault_when(
      [](DeviceBuffer& buffer) { return buffer.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ); });
}

TEST_F(SimulatedFaultTest, FailureEndsAWaitForAValue) {
  start();
  const PinnedBuffer value(api(), 8);
  ASSERT_EQ(api().cuStreamWaitValue64(nullptr, reinterpret_cast<CUdeviceptr>(value.data()), 1,
                                      CU_STREAM_WAIT_VALUE_EQ),
            CUDA_SUCCESS);
  driver_->fail_context(CUDA_ERROR_ILLEGAL_ADDRESS);
  expect_illegal_address(nullptr);
}

}  // namespace
}  // namespace tencache
