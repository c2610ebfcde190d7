// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/host_pinner.h"

#include <string>

#include "base/log.h"
#include "base/units.h"
#include "platform/cuda/call_scope.h"
#include "platform/cuda/driver_use.h"

namespace tencache {
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
  if (!unpinned.is_ok() && may_call_driver()) {
    TENCACHE_LOG_WARNING("%s", unpinned.message().c_str());
  }
}

}  // namespace tencache
