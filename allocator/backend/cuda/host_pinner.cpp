// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/host_pinner.h"

#include <string>

#include "base/log.h"
#include "base/units.h"

namespace tencache {
namespace {

/// While it lives, the calling thread has `context`, and its calls do not count against a capture
/// that some stream has begun.
class CallScope {
 public:
  CallScope(const DriverApi& driver, CUcontext context) : driver_(driver) {
    status_ = enter(context);
  }
  ~CallScope() {
    // In the order in which they were changed, backwards. There is nobody to tell of a failure, and
    // one of earlier work shows again in the program's own next call.
    if (has_capture_mode_) (void)driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
    if (has_context_) (void)driver_.cuCtxSetCurrent(previous_);
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  const Status& status() const { return status_; }

 private:
  Status enter(CUcontext context) {
    TENCACHE_RETURN_IF_ERROR(cuda_status(driver_, driver_.cuCtxGetCurrent(&previous_),
                                         "Cannot ask for the thread's CUDA context"));
    if (previous_ != context) {
      // A call that reports an error of earlier work may have done its own.
      has_context_ = true;
      TENCACHE_RETURN_IF_ERROR(cuda_status(driver_, driver_.cuCtxSetCurrent(context),
                                           "Cannot enter the GPU's CUDA context"));
    }
    TENCACHE_RETURN_IF_ERROR(cuda_status(driver_,
                                         driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_),
                                         "Cannot set the thread's capture mode"));
    has_capture_mode_ = true;
    return Status::ok();
  }

  const DriverApi& driver_;
  CUcontext previous_ = nullptr;
  bool has_context_ = false;
  CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool has_capture_mode_ = false;
  Status status_;
};

}  // namespace

Status CudaHostPinner::pin(void* memory, uint64_t bytes) {
  const CallScope scope(driver_, context_);
  TENCACHE_RETURN_IF_ERROR(scope.status());
  return cuda_status(driver_, driver_.cuMemHostRegister(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE),
                     "Cannot pin " + format_bytes(bytes) + " of host memory");
}

void CudaHostPinner::unpin(void* memory, uint64_t bytes) {
  const CallScope scope(driver_, context_);
  const Status unpinned = scope.status().is_ok()
                              ? cuda_status(driver_, driver_.cuMemHostUnregister(memory),
                                            "Cannot unpin " + format_bytes(bytes))
                              : scope.status();
  if (!unpinned.is_ok()) TENCACHE_LOG_WARNING("%s", unpinned.message().c_str());
}

}  // namespace tencache
