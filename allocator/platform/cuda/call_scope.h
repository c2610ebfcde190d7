// SPDX-License-Identifier: Apache-2.0
//
// CallScope: while it lives, the calling thread has the GPU's context, and its calls do not
// invalidate a CUDA graph that some stream is capturing. Afterwards the thread has its own context
// and capture mode again. The scope is for calls that need that context or that mode: those for
// memory, copies, streams, events and kernels. Where the driver must not be called
// (platform/cuda/driver_use.h), the scope makes no call and is not ok.
#pragma once

#include <cuda.h>

#include "base/status.h"
#include "platform/cuda/driver_api.h"

namespace tencache {

class CallScope {
 public:
  CallScope(const DriverApi& driver, CUcontext context);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// Make calls only when this is ok.
  const Status& status() const { return status_; }

 private:
  Status enter(CUcontext context);

  const DriverApi& driver_;
  CUcontext previous_ = nullptr;
  bool has_context_ = false;
  CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool has_capture_mode_ = false;
  Status status_;
};

}  // namespace tencache
