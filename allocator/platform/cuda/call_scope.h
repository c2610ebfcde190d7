// SPDX-License-Identifier: Apache-2.0
//
// CallScope: while it lives, the calling thread has the GPU's context, and its calls do not count
// against a CUDA graph that some stream is capturing, which a plain call would spoil. What the
// thread had before it has again afterwards. For the slow calls, which need either: memory, copies.
// Where the driver must not be called (platform/cuda/driver_use.h) it calls nothing and is not ok.
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
    // In the order in which they were changed, backwards. There is nobody to tell of a failure, and
    // one of earlier work shows again in the program's own next call.
    if (!may_call_driver()) return;  // since the scope was entered
    if (has_capture_mode_) (void)driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
    if (has_context_) (void)driver_.cuCtxSetCurrent(previous_);
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// Calls may be made only when this is ok.
  const Status& status() const { return status_; }

 private:
  Status enter(CUcontext context) {
    TENCACHE_RETURN_IF_ERROR(driver_use_status());
    TENCACHE_RETURN_IF_ERROR(cuda_status(driver_, driver_.cuCtxGetCurrent(&previous_),
                                         "Cannot ask for the thread's CUDA context"));
    if (previous_ != context) {
      // A call that reports an error of earlier work may have done its own.
      has_context_ = true;
      TENCACHE_RETURN_IF_ERROR(cuda_status(driver_, driver_.cuCtxSetCurrent(context),
                                           "Cannot enter the GPU's CUDA context"));
    }
    const CUresult exchanged = driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
    // This one too may have done its own. A thread that was relaxed before needs nothing back.
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
