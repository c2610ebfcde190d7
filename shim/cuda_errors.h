// SPDX-License-Identifier: Apache-2.0
//
// The exceptions of the CUDA allocators. Out of memory uses PyTorch's own words, which programs and
// libraries search for. An unsupported feature is named with the reason and the remedy. Threads:
// any.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "abi/tencache_gpu.h"

namespace tencache::shim {

/// The figures in an out-of-memory error.
struct CudaMemoryState {
  uint64_t free_bytes = 0;  // of the GPU, over all programs
  uint64_t total_bytes = 0;
  tencache_gpu_stats stats = {};
};
CudaMemoryState cuda_memory_state(tencache_gpu* gpu);

/// A size as PyTorch writes it: "20.00 MiB".
std::string cuda_size_text(uint64_t bytes);

/// Throws c10::OutOfMemoryError; `reason` is the core's text.
[[noreturn]] void throw_cuda_out_of_memory(c10::DeviceIndex device, size_t bytes,
                                           const CudaMemoryState& state, const char* reason);

/// Throws c10::Error: "tencache does not support <feature>: <reason> <remedy>".
[[noreturn]] void throw_unsupported(const char* feature, const char* reason, const char* remedy);

}  // namespace tencache::shim
