// SPDX-License-Identifier: Apache-2.0
//
// CallScript: counts the calls of each function of the simulated driver, and decides which of them
// fail or take long. Functions are named as in TENCACHE_CUDA_FUNCTIONS; any other name is a failed
// check. Any thread may use it. Until a test plans a failure or a delay, a call takes no lock, so
// counting orders no threads of the program and hides no race from ThreadSanitizer.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "platform/cuda/driver_api.h"

namespace tencache {

inline constexpr std::string_view kCudaFunctionNames[] = {
#define TENCACHE_CUDA_NAME(name) #name,
    TENCACHE_CUDA_FUNCTIONS(TENCACHE_CUDA_NAME)
#undef TENCACHE_CUDA_NAME
};
inline constexpr size_t kCudaFunctionCount = std::size(kCudaFunctionNames);

/// The index of a function in the table, or kCudaFunctionCount for an unknown name.
constexpr size_t cuda_function_index(std::string_view name) {
  size_t index = 0;
  while (index < kCudaFunctionCount && kCudaFunctionNames[index] != name) ++index;
  return index;
}

class CallScript {
 public:
  /// The nth call of the function from now (1 is the next one) returns `result`.
  void fail(std::string_view name, uint64_t nth, CUresult result) TENCACHE_EXCLUDES(mutex_);
  /// From now on each call of the function takes that much longer.
  void set_latency(std::string_view name, std::chrono::nanoseconds latency)
      TENCACHE_EXCLUDES(mutex_);
  uint64_t calls(std::string_view name) const;

  /// Begins one call: counts it, delays it, and returns its planned failure.
  CUresult enter(size_t function) TENCACHE_EXCLUDES(mutex_);

 private:
  struct Fault {
    size_t function;
    uint64_t call;  // counted from the first call
    CUresult result;
  };

  std::array<std::atomic<uint64_t>, kCudaFunctionCount> calls_ = {};  // relaxed: only counts
  std::atomic<bool> has_plans_ = false;  // set before the call that is to find them
  Mutex mutex_;
  std::vector<Fault> faults_ TENCACHE_GUARDED_BY(mutex_);
  std::array<std::chrono::nanoseconds, kCudaFunctionCount> latencies_
      TENCACHE_GUARDED_BY(mutex_) = {};
};

}  // namespace tencache
