// SPDX-License-Identifier: Apache-2.0
//
// The calling thread's last error, the names of errors, and the one way to refuse a function
// without a stand-in: by name, on stderr, with cudaErrorNotSupported. The output of a refused
// kernel is missing, whether or not somebody checks its launch. So a refused kernel fails the
// context, and the text of cudaErrorLaunchFailure names it from then on. With EMULATED_GPU_ABORT in
// the environment a refusal ends the process. An error of the driver has the same number as the
// runtime's, except for a few errors that the emulation never returns. Any thread may call.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

namespace emulated_gpu::runtime {

/// Stores a failure as the thread's last error and returns it. cudaErrorNotReady is no failure.
cudaError_t note(cudaError_t error);
cudaError_t note(CUresult result);

cudaError_t refuse(const std::string& what);
/// Refuses with cudaErrorLaunchFailure, the context's error from then on.
cudaError_t refuse_kernel(const std::string& what);
/// Fails the context. The first reason counts.
void fail_device(const std::string& why);

}  // namespace emulated_gpu::runtime
