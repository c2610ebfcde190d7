// SPDX-License-Identifier: Apache-2.0
//
// The calling thread's last error, the names of errors, and the one way to refuse what has no
// stand-in: by name, on stderr, with cudaErrorNotSupported. What a kernel should have written is
// not there, whether or not somebody checks its launch: so a refused kernel fails the context, and
// the text of cudaErrorLaunchFailure names it from then on. EMULATED_GPU_ABORT in the environment
// makes a refusal end the process. An error of the driver has the run time's number, but for few
// that the emulation never gives. Any thread may call.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

namespace emulated_gpu::runtime {

/// Keeps a failure as the thread's last error and returns it. cudaErrorNotReady is none.
cudaError_t note(cudaError_t error);
cudaError_t note(CUresult result);
/// The same of the driver's call, which is made where nothing stands against it.
template <typename Call>
cudaError_t note_unless(cudaError_t obstacle, Call call) {
  return obstacle != cudaSuccess ? note(obstacle) : note(call());
}

cudaError_t refuse(const std::string& what);
/// With cudaErrorLaunchFailure, which the context has from then on.
cudaError_t refuse_kernel(const std::string& what);
/// The context fails. The first reason is kept.
void fail_device(const std::string& why);

}  // namespace emulated_gpu::runtime
