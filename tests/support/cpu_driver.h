// SPDX-License-Identifier: Apache-2.0
//
// The interface through which the suite of every backend (tests/allocator/backends_test.cpp) uses a
// backend, and CpuDriver, which implements it for the cpu backend: an engine whose budget is a
// number of tensors, ops that write or look for a pattern, and the wait that must come before a
// look at states. CudaDriver (support/cuda/cuda_driver.h) has the same members. Several threads
// work side by side on lanes: streams where the backend has them.
//
// Threads: as Engine; each lane on one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/test_engine.h"

namespace tencache {

struct DriverSetup {
  uint64_t budget_tensors = 16;
  bool strict = false;
  std::optional<ChaosConfig> chaos = {};
  std::shared_ptr<const Period> stored_period = {};
};

class CpuDriver {
 public:
  static constexpr uint64_t kTensorBytes = 512 * kKiB;
  static constexpr size_t kLanes = 4;

  explicit CpuDriver(const DriverSetup& setup)
      : engine_([&](CpuEngineConfig& config) {
          config.budget_bytes = setup.budget_tensors * kTensorBytes;
          config.chaos = setup.chaos;
          config.stored_period = setup.stored_period;
          config.heap.strict = setup.strict;
          if (setup.strict) config.disk.reset();
        }) {}

  Engine& engine() { return *engine_; }
  Result<void*> try_allocate(uint64_t bytes, size_t /*lane*/) { return engine_->allocate(bytes); }
  void free(void* address) { engine_.free(address); }

  /// Runs an op that writes the pattern of a seed.
  void write(char* address, uint64_t seed, size_t /*lane*/) {
    const GateScope op(engine_, {address}, AccessMode::kWrite);
    fill_pattern(address, kTensorBytes, seed);
  }
  /// Runs one op that reads all tensors; counts those that differ from the patterns of the seeds
  /// [first_seed, ...).
  void check(const std::vector<char*>& tensors, uint64_t first_seed, size_t /*lane*/) {
    std::vector<Access> accesses;
    for (char* address : tensors) accesses.push_back({address, AccessMode::kRead});
    const GateScope op(engine_, accesses);
    for (size_t index = 0; index < tensors.size(); ++index) {
      if (!has_pattern(tensors[index], kTensorBytes, first_seed + index)) differences_.fetch_add(1);
    }
  }
  void open(const std::vector<Access>& accesses) { engine_->gate().open(0, accesses); }
  Hold* hold(const std::vector<Access>& accesses) { return engine_->gate().hold(accesses, false); }

  /// Waits until fetched and queued bytes are there; on this backend they always are.
  void settle() {}
  uint64_t differences() const { return differences_.load(); }
  std::string check_books() { return engine_.check_books(); }

 private:
  TestEngine engine_;
  std::atomic<uint64_t> differences_{0};
};

}  // namespace tencache
