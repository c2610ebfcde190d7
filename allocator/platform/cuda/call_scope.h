// SPDX-License-Identifier: Apache-2.0
//
// CallScope: while it lives, the calling thread has the GPU's context, and its calls do not spoil a
// CUDA graph that some stream is capturing. Afterwards the thread has its own context and capture
// mode again. For the slow calls, which need either: memory, copies. Where the driver must not be
// called (platform/cuda/driver_use.h), the scope makes no call and is not ok.
#pragma once

#include <cuda.h>

#include "base/status.h"
#include "platform/cuda/driver_api.h"
#include "platform/cuda/driver_use.h"

namespace tencache {

class CallScope {
 public:
  CallScope(const DriverApi& driver, CUcontext context) : driver_(driver) {
    status_ = enter(context);
  }
  ~CallScope() {
    // Restores in reverse order. Errors are ignored (platform/cuda/driver_use.h).
    if (!may_call_driver()) return;  // it may have ended since the scope was entered
    if (has_capture_mode_) (void)driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
    if (has_context_) (void)driver_.cuCtxSetCurrent(previous_);
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// Make calls only when this is ok.
  const Status& status() const { return status_; }

 private:
  Status enter(CUcontext context) {
    TENCACHE_RETURN_IF_ERROR(driver_use_status());
    TENCACHE_RETURN_IF_ERROR(cuda_status(driver_, driver_.cuCtxGetCurrent(&previous_),
                                         "Cannot ask for the thread's CUDA context"));
    if (previous_ != context) {
      // A call that reports an error of earlier work may have taken effect itself.
      has_context_ = true;
      TENCACHE_RETURN_IF_ERROR(cuda_status(driver_, driver_.cuCtxSetCurrent(context),
                                           "Cannot enter the GPU's CUDA context"));
    }
    const CUresult exchanged = driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
    // This call too may have taken effect. A thread that was relaxed before needs nothing restored.
    has_capture_mode_ = capture_mode_ != CU_STREAM_CAPTURE_MODE_RELAXED;
    return cuda_status(driver_, exchanged, "Cannot set the thread's capture mode");
  }

  const DriverApi& driver_;
  CUcontext previous_ = nullptr;
  bool has_context_ = false;
  CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool has_capture_mode_ = false;
  Status status_;
};

}  // namespace tencache
