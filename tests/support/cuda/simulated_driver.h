// SPDX-License-Identifier: Apache-2.0
//
// SimulatedDriver: a CUDA driver without a GPU, behind the same table of functions (DriverApi). A
// device address is an address of the process, and device memory that is not mapped is not
// accessible, so a kernel that touches an extent that is not resident is a crash in a test.
//
//   SimulatedDriver driver({.capacity_bytes = 64 * kMiB, .to_device_bytes_per_s = kGiB});
//   const DriverApi& api = driver.api();      // cuInit has been done; contexts are up to the
//   caller driver.launch(stream, {{address, bytes}}, [&] { ...read and write there... },
//   1'000'000); driver.fail("cuMemCreate", 3, CUDA_ERROR_OUT_OF_MEMORY);
//   EXPECT_EQ(driver.calls("cuStreamSynchronize"), 0u);
//   EXPECT_EQ(driver.leaks(), "");
//
// It is strict where the real driver may let something pass: a call from a host function or kernel
// is CUDA_ERROR_NOT_PERMITTED, one without a current context, where the function needs one,
// CUDA_ERROR_INVALID_CONTEXT. How memory, streams and clocks behave stands in simulated_memory.h,
// stream_table.h and simulated_stream.h.
//
// Work that uses memory which is not, or no longer, accessible fails the context with
// CUDA_ERROR_ILLEGAL_ADDRESS: all work that is queued is dropped, and every later call but the
// queries of devices, versions, error texts and the current context returns it. This holds for
// copies and for the ranges that kernels declare; a kernel that touches others gets a SIGSEGV.
//
// One is alive at a time, since the table's functions carry no context; a call when there is none
// is a failed check. Any thread may call the table and the methods; make and destroy it while no
// other thread uses it.
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
  /// Drops queued work, waits for a kernel that runs, and takes back all memory.
  ~SimulatedDriver();
  SimulatedDriver(const SimulatedDriver&) = delete;
  SimulatedDriver& operator=(const SimulatedDriver&) = delete;

  /// Every function is there.
  const DriverApi& api() const { return api_; }

  /// Queues a kernel that uses these ranges. The stream is busy for the duration; then the callable
  /// runs, on the stream's thread. As on the real driver the ranges are not looked at before the
  /// kernel's turn comes.
  CUresult launch(CUstream stream, std::vector<DeviceRange> touches, std::function<void()> kernel,
                  std::chrono::nanoseconds duration = {});

  /// What modules mean by a kernel of that name from now on (support/cuda/simulated_modules.h).
  void add_kernel(std::string_view name, SimulatedKernel kernel);

  /// The nth call of the function from now (1 is the next one) returns `result` and does nothing.
  void fail(std::string_view name, uint64_t nth, CUresult result);
  /// From now on each call of the function takes so much longer.
  void set_latency(std::string_view name, std::chrono::nanoseconds latency);
  /// From now on the stream says that it captures a CUDA graph, and refuses events; or no longer.
  void set_capturing(CUstream stream, bool is_capturing);
  /// What the stream is given from now on waits for let_go(). After two minutes that ends the test.
  void hold(CUstream stream);
  /// But for the next so many, no copy begins until let_go(), whatever waits for it; for two
  /// minutes at most, too. REQUIRES: no copy is queued.
  void hold_copies(int64_t but = 0);
  /// All that is held goes on.
  void let_go();
  /// Whether all that is queued waits for let_go(), and some of it by way of an event: what else
  /// was queued, and did not wait, has been done then.
  bool is_stuck() const;
  /// The context fails as if by a kernel's fault.
  void fail_context(CUresult result);
  /// How often the function was called, failed calls included.
  uint64_t calls(std::string_view name) const;

  /// Works that are queued or running: in one stream, in all.
  size_t unfinished(CUstream stream) const;
  bool is_idle() const;
  /// Returns when all that is queued has ended; lets go of what is held. Counts as no call of the
  /// driver.
  void wait_until_idle();

  /// What is alive still, one line each: reservations, mappings, handles, registrations, streams,
  /// events, modules, retained contexts. Empty when there is nothing.
  std::string leaks() const;

  /// The table's functions, which find the driver that is alive themselves: for who must name them
  /// before there is one.
  static DriverApi functions();
  /// For who puts more functions around the table's (support/cuda/simulated_driver_parts.h).
  struct Parts;
  Parts& parts() { return *parts_; }

 private:
  std::unique_ptr<Parts> parts_;
  DriverApi api_;
};

}  // namespace tencache
