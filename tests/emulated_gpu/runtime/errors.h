// SPDX-License-Identifier: Apache-2.0
//
// The calling thread's last error, and the one way to refuse what has no stand-in: by name, on
// stderr, with cudaErrorNotSupported. EMULATED_GPU_ABORT in the environment makes a refusal end the
// process.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace emulated_gpu::runtime {

// Keeps a failure as the thread's last error and returns it.
cudaError_t note(cudaError_t error);
cudaError_t note(CUresult result);
cudaError_t last_error();
cudaError_t take_last_error();

cudaError_t refuse(const char* what);
cudaError_t refuse_kernel(const void* function);
void register_kernel(const void* function, const char* name);

}  // namespace emulated_gpu::runtime
