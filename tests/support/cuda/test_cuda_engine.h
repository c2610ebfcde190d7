// SPDX-License-Identifier: Apache-2.0
//
// TestCudaEngine: a whole allocator over the simulated driver with small figures, and helpers for
// tests: streams, ops whose kernels write a stamp or look for one, evictions and fetches of single
// extents. A kernel that touches unmapped memory fails the context, which the destructor reports.
// The host tier registers its memory with the simulated driver, as it does with a real one.
// Threads: as Engine; make and destroy it on one thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "engine/cuda_device.h"
#include "engine/engine.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"
#include "support/cuda/simulated_nvrtc.h"

namespace tencache {

/// A kernel's use of a buffer.
struct KernelUse {
  char* address = nullptr;
  uint64_t bytes = 0;
  uint64_t seed = 0;  // of the stamp to write or to find
  bool writes = false;
};

/// What a test may change of the engine and of the device below it.
struct CudaEngineConfig : EngineConfig, CudaDeviceConfig {};

class TestCudaEngine {
 public:
  static constexpr uint64_t kBudgetBytes = 64 * kMiB;
  static constexpr uint64_t kHostBytes = 256 * kMiB;

  using Adjust = std::function<void(CudaEngineConfig&)>;

  /// Aborts when the engine cannot be made. `adjust` may change the configuration before that.
  /// Without a copy kernel the copy engines copy, however slow they are.
  explicit TestCudaEngine(const Adjust& adjust = {}, const SimulatedDriverConfig& driver = {},
                          bool has_copy_kernel = false);
  /// Fails the test when objects of the driver are left, or when the context has failed without
  /// expect_failed_context().
  ~TestCudaEngine();
  TestCudaEngine(const TestCudaEngine&) = delete;
  TestCudaEngine& operator=(const TestCudaEngine&) = delete;

  Engine& operator*() { return *engine_; }
  Engine* operator->() { return engine_.get(); }
  CudaDevice& device() { return *device_; }
  SimulatedDriver& driver() { return *driver_; }
  const DriverApi& api() const { return driver_->api(); }
  const Stats& stats() { return engine_->settled_stats(); }

  /// Makes a stream of the program's.
  CUstream make_stream();
  /// Destroys a stream of make_stream() as the program does under a guard, which tells of the end
  /// first. The stream's work goes on.
  void destroy_stream(CUstream stream);
  /// Orders all later work of `later` after all earlier work of `earlier`.
  void order(CUstream earlier, CUstream later);

  /// Allocates; a failure ends the process.
  char* allocate(uint64_t bytes, CUstream stream);
  void free(void* address) { engine_->free(address); }
  /// Returns null for a small block.
  CudaExtent* extent(const void* address) const;
  ExtentState state(const void* address) const { return extent(address)->state(); }
  /// How many freed blocks wait for streams.
  uint64_t waiting_count() const;

  /// Runs an op that passes the gate, queues one kernel and ends.
  void op(CUstream stream, const std::vector<KernelUse>& uses,
          std::chrono::nanoseconds duration = {});
  void write(CUstream stream, char* address, uint64_t bytes, uint64_t seed,
             std::chrono::nanoseconds duration = {}) {
    op(stream, {{address, bytes, seed, true}}, duration);
  }
  void check(CUstream stream, char* address, uint64_t bytes, uint64_t seed) {
    op(stream, {{address, bytes, seed, false}});
  }
  /// The number of uses in which a kernel has found a wrong stamp.
  uint64_t differences() const { return differences_.load(); }

  /// Makes this one extent cold. Returns false when it stayed resident.
  bool evict(const void* address);
  /// Fetches these ahead of use. Returns how many requests were carried out.
  size_t prefetch(const std::vector<const void*>& addresses);
  void wait_until_idle() { driver_->wait_until_idle(); }
  void expect_failed_context() { may_fail_ = true; }
  void allow_leaks() { may_leak_ = true; }

  /// Returns an empty string when the books agree: the budget with extents and segments, the host
  /// and disk tiers with the copies, the heap with itself. REQUIRES: no other thread uses the
  /// engine.
  std::string check_books();

 private:
  std::string check_books_once();

  std::optional<SimulatedDriver> driver_;
  std::optional<CurrentContext> context_;  // the program's
  SimulatedNvrtc nvrtc_;
  std::unique_ptr<Engine> engine_;
  CudaDevice* device_ = nullptr;  // the engine's
  std::vector<CUstream> streams_;
  std::atomic<uint64_t> differences_{0};
  bool may_fail_ = false;
  bool may_leak_ = false;
};

/// Writes words made of seed and place at both ends of each page.
void stamp(char* memory, uint64_t bytes, uint64_t seed);
bool has_stamp(const char* memory, uint64_t bytes, uint64_t seed);

}  // namespace tencache
