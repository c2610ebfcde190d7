// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/call_script.h"

#include <thread>

#include "base/check.h"

namespace tencache {
namespace {

size_t checked_index(std::string_view name) {
  const size_t index = cuda_function_index(name);
  TENCACHE_CHECK(index < kCudaFunctionCount, "the driver has no %.*s",
                 static_cast<int>(name.size()), name.data());
  return index;
}

}  // namespace

void CallScript::fail(std::string_view name, uint64_t nth, CUresult result) {
  TENCACHE_CHECK(nth >= 1 && result != CUDA_SUCCESS);
  const size_t function = checked_index(name);
  MutexLock lock(mutex_);
  faults_.push_back({function, calls_[function].load(std::memory_order_relaxed) + nth, result});
  has_plans_.store(true, std::memory_order_relaxed);
}

void CallScript::set_latency(std::string_view name, std::chrono::nanoseconds latency) {
  const size_t function = checked_index(name);
  MutexLock lock(mutex_);
  latencies_[function] = latency;
  has_plans_.store(true, std::memory_order_relaxed);
}

uint64_t CallScript::calls(std::string_view name) const {
  return calls_[checked_index(name)].load(std::memory_order_relaxed);
}

CUresult CallScript::enter(size_t function) {
  const uint64_t call = calls_[function].fetch_add(1, std::memory_order_relaxed) + 1;
  if (!has_plans_.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  std::chrono::nanoseconds latency{0};
  {
    MutexLock lock(mutex_);
    latency = latencies_[function];
    for (size_t index = 0; index < faults_.size(); ++index) {
      if (faults_[index].function != function || faults_[index].call != call) continue;
      result = faults_[index].result;
      faults_.erase(faults_.begin() + static_cast<std::ptrdiff_t>(index));
      break;
    }
  }
  if (latency > std::chrono::nanoseconds::zero()) std::this_thread::sleep_for(latency);
  return result;
}

}  // namespace tencache
