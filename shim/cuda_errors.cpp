// SPDX-License-Identifier: Apache-2.0
#include "cuda_errors.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstdio>

namespace tencache::shim {

CudaMemoryState cuda_memory_state(tencache_gpu* gpu) {
  CudaMemoryState state;
  // If the driver refuses, the text shows zeros; the refusal itself is not the error to report.
  (void)tencache_gpu_memory(gpu, &state.free_bytes, &state.total_bytes, nullptr);
  tencache_gpu_get_stats(gpu, &state.stats);
  return state;
}

std::string cuda_size_text(uint64_t bytes) {
  static constexpr std::array kUnits = {"KiB", "MiB", "GiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 64> text;
  snprintf(text.data(), text.size(), "%.2f %s", value, kUnits.at(unit));
  return text.data();
}

void throw_cuda_out_of_memory(c10::DeviceIndex device, size_t bytes, const CudaMemoryState& state,
                              const char* reason) {
  const tencache_gpu_stats& stats = state.stats;
  const uint64_t allocated_bytes = stats.all.bytes.current;
  const uint64_t used_bytes = allocated_bytes - std::min(allocated_bytes, stats.cold_bytes);
  const uint64_t reserved_bytes = stats.all.device_bytes.current;
  const uint64_t unused_bytes = reserved_bytes - std::min(reserved_bytes, used_bytes);
  std::string text = "CUDA out of memory. Tried to allocate " + cuda_size_text(bytes) + ". GPU " +
                     std::to_string(static_cast<int>(device)) + " has a total capacity of " +
                     cuda_size_text(state.total_bytes) + " of which " +
                     cuda_size_text(state.free_bytes) + " is free. Of the allocated memory " +
                     cuda_size_text(allocated_bytes) + " is allocated by PyTorch (" +
                     cuda_size_text(stats.cold_bytes) + " of it in host memory), and " +
                     cuda_size_text(unused_bytes) + " is reserved by PyTorch but unallocated. " +
                     reason;
  C10_THROW_ERROR(OutOfMemoryError, text);
}

void throw_unsupported(const char* feature, const char* reason, const char* remedy) {
  C10_THROW_ERROR(
      Error, std::string("tencache does not support ") + feature + ": " + reason + " " + remedy);
}

}  // namespace tencache::shim
