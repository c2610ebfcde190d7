// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/call_scope.h"

#include "platform/cuda/driver_use.h"

namespace tencache {

CallScope::CallScope(const DriverApi& driver, CUcontext context) : driver_(driver) {
  status_ = enter(context);
}

// Restores in reverse order. Errors are ignored (platform/cuda/driver_use.h).
CallScope::~CallScope() {
  if (!may_call_driver()) return;  // the driver's use may have ended since the scope began
  if (has_capture_mode_) (void)driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
  if (has_context_) (void)driver_.cuCtxSetCurrent(previous_);
}

Status CallScope::enter(CUcontext context) {
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

}  // namespace tencache
