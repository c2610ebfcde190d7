// SPDX-License-Identifier: Apache-2.0
//
// LoadedKernel: one kernel of ours, compiled at run time for the GPU that is there, and loaded. It
// takes one parameter, a plain struct. Threads: any, after create(). Where the driver must not be
// called (platform/cuda/driver_use.h) nothing is launched, and everything stays as it is.
#pragma once

#include <cuda.h>

#include <memory>

#include "base/status.h"
#include "platform/cuda/gpu.h"
#include "platform/cuda/nvrtc_api.h"

namespace tencache {

class LoadedKernel {
 public:
  /// Takes some tenths of a second. `what` is the kernel's verb in messages: "hashes". Errors are
  /// those of NVRTC and of the driver.
  static Result<std::unique_ptr<LoadedKernel>> create(const Gpu& gpu, const NvrtcApi& nvrtc,
                                                      const char* name, const char* text,
                                                      const char* what);
  /// REQUIRES: no launch is under way, unless the driver may no longer be called.
  ~LoadedKernel();
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;

  /// Queues the kernel and copies the parameter before it returns. REQUIRES: the stream is not
  /// capturing a graph.
  Status launch(CUstream stream, unsigned blocks, unsigned threads, const void* parameter) const;

  unsigned multiprocessors() const { return multiprocessors_; }

 private:
  LoadedKernel(const Gpu& gpu, const char* what) : gpu_(gpu), what_(what) {}
  Status load(const NvrtcApi& nvrtc, const char* name, const char* text);

  const Gpu& gpu_;
  const char* const what_;
  // All members below are constant once create() has returned.
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
  unsigned multiprocessors_ = 1;
};

}  // namespace tencache
