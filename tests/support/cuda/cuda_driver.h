// SPDX-License-Identifier: Apache-2.0
//
// CudaDriver: the interface of support/cpu_driver.h for the cuda backend over the simulated driver.
// A lane is a stream; kernels write and look for stamps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/cpu_driver.h"
#include "support/cuda/test_cuda_engine.h"

namespace tencache {

class CudaDriver {
 public:
  static constexpr uint64_t kTensorBytes = 2 * kMiB;
  static constexpr size_t kLanes = 4;

  explicit CudaDriver(const DriverSetup& setup)
      : engine_([&](CudaEngineConfig& config) {
          config.budget_bytes = setup.budget_tensors * kTensorBytes;
          config.chaos = setup.chaos;
          config.stored_period = setup.stored_period;
          config.heap.strict = setup.strict;
          if (setup.strict) config.host.reset();
        }) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes_.push_back(engine_.make_stream());
  }

  Engine& engine() { return *engine_; }
  Result<void*> try_allocate(uint64_t bytes, size_t lane) {
    return engine_->allocate(bytes, lanes_[lane]);
  }
  void free(void* address) { engine_.free(address); }

  void write(char* address, uint64_t seed, size_t lane) {
    engine_.write(lanes_[lane], address, kTensorBytes, seed);
  }
  void check(const std::vector<char*>& tensors, uint64_t first_seed, size_t lane) {
    std::vector<KernelUse> uses;
    for (char* address : tensors) uses.push_back({address, kTensorBytes, first_seed++, false});
    engine_.op(lanes_[lane], uses);
  }
  void open(const std::vector<Access>& accesses) { engine_->open_op(0, accesses, lanes_[0]); }
  Hold* hold(const std::vector<Access>& accesses) {
    return engine_->gate().hold(accesses, false, engine_.device().streams().set_of(lanes_[0]));
  }

  void settle() {
    engine_.wait_until_idle();
    if (engine_->mover() != nullptr) engine_->mover()->settle(true);
  }
  /// Counts only what kernels have found that have run so far.
  uint64_t differences() const { return engine_.differences(); }
  std::string check_books() { return engine_.check_books(); }

 private:
  TestCudaEngine engine_;
  std::vector<CUstream> lanes_;
};

}  // namespace tencache
