// SPDX-License-Identifier: Apache-2.0
//
// SimulatedDriver: a CUDA driver without a GPU, behind the same table of functions (DriverApi). A
// device address is an address of the process, and unmapped device memory is inaccessible, so a
// kernel that touches an extent that is not resident crashes the test.
//
//   SimulatedDriver driver({.capacity_bytes = 64 * kMiB, .to_device_bytes_per_s = kGiB});
//   const DriverApi& api = driver.api();  // cuInit has been done; the caller makes contexts
//   driver.launch(stream, {{address, bytes}}, [&] { ...read and write there... }, 1ms);
//   driver.fail("cuMemCreate", 3, CUDA_ERROR_OUT_OF_MEMORY);
//   EXPECT_EQ(driver.calls("cuStreamSynchronize"), 0u);
//   EXPECT_EQ(driver.leaks(), "");
//
// The simulated driver is strict where the real one may be lenient: a call from a host function or
// kernel returns CUDA_ERROR_NOT_PERMITTED, and a call without the current context that its function
// needs returns CUDA_ERROR_INVALID_CONTEXT. simulated_memory.h, stream_table.h and
// simulated_stream.h define how memory, streams and clocks behave.
//
// Work on memory that is not, or no longer, accessible fails the context with
// CUDA_ERROR_ILLEGAL_ADDRESS. All queued work is dropped, and every later call returns the error.
// The exceptions are cuInit, queries of devices, versions and error texts, the current context, the
// release of a primary context, and the thread's capture mode. The driver checks copies, memsets,
// values and the ranges that kernels declare; a kernel that touches other memory gets a SIGSEGV.
//
// One driver is alive at a time, since no argument of the table's functions names it; a call while
// none is alive is a failed check. Any thread may call the table and the methods. Make and destroy
// it while no other thread uses it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "platform/cuda/driver_api.h"
#include "support/cuda/simulated_driver_config.h"
#include "support/cuda/simulated_modules.h"

namespace tencache {

class SimulatedDriver {
 public:
  explicit SimulatedDriver(const SimulatedDriverConfig& config = {});
  /// Drops queued work, waits for a running kernel, and takes back all memory.
  ~SimulatedDriver();
  SimulatedDriver(const SimulatedDriver&) = delete;
  SimulatedDriver& operator=(const SimulatedDriver&) = delete;

  /// The table with every function.
  const DriverApi& api() const { return api_; }

  /// Queues a kernel that uses these ranges. The stream is busy for the duration; then the callable
  /// runs, on the stream's thread. (With works_first it runs first.) As on the real driver, the
  /// ranges are checked only when the kernel's turn comes.
  CUresult launch(CUstream stream, std::vector<DeviceRange> touches, std::function<void()> kernel,
                  std::chrono::nanoseconds duration = {});

  /// From now on modules find this kernel by that name (support/cuda/simulated_modules.h).
  void add_kernel(std::string_view name, SimulatedKernel kernel);

  /// The nth call of the function from now (1 is the next one) returns `result` and does nothing.
  void fail(std::string_view name, uint64_t nth, CUresult result);
  /// From now on each call of the function takes that much longer.
  void set_latency(std::string_view name, std::chrono::nanoseconds latency);
  /// Makes the stream capture a CUDA graph in PyTorch's mode (CU_STREAM_CAPTURE_MODE_GLOBAL), or
  /// ends that and drops the graph. One thread does both. A capture that was invalidated meanwhile
  /// fails the test.
  void set_capturing(CUstream stream, bool is_capturing);
  /// Later work of the stream waits for let_go(). After two minutes of waiting the test ends.
  void hold(CUstream stream);
  /// No copy after the next `but` copies begins until let_go(), whatever waits for it. After two
  /// minutes of waiting the test ends. REQUIRES: no copy is queued.
  void hold_copies(int64_t but = 0);
  /// Lets all held work go on.
  void let_go();
  /// Whether all queued work waits for let_go(), some of it through an event. Work that did not
  /// have to wait is done then.
  bool is_stuck() const;
  /// Fails the context as a kernel's fault would.
  void fail_context(CUresult result);
  /// How often the function was called, failed calls included.
  uint64_t calls(std::string_view name) const;

  /// The number of works that are queued or running in the stream.
  size_t unfinished(CUstream stream) const;
  /// Whether no stream has such work.
  bool is_idle() const;
  /// Lets go of held work and returns when all queued work has ended. This counts as no call of the
  /// driver.
  void wait_until_idle();

  /// The objects that are still alive, one line each: reservations, mappings, handles,
  /// registrations, streams, events, modules, retained contexts. Returns an empty string when there
  /// are none.
  std::string leaks() const;

  /// The table's functions, which find the live driver themselves. They serve callers that must
  /// name them before there is a driver.
  static DriverApi functions();
  /// The parts serve code that puts more functions around the table's
  /// (support/cuda/simulated_driver_parts.h).
  struct Parts;
  Parts& parts() { return *parts_; }

 private:
  std::unique_ptr<Parts> parts_;
  DriverApi api_;
};

}  // namespace tencache
