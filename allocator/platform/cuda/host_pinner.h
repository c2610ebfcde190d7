// SPDX-License-Identifier: Apache-2.0
//
// CudaHostPinner: pins host memory through the CUDA driver, for every context of the process
// (PORTABLE), so that each GPU copies from and to it. It runs on any thread that needs memory. For
// the call it makes its context current and keeps CUDA graph captures unharmed (CallScope). Errors
// of earlier work that the driver reports again are passed on and not cleared.
//
// On systems where the GPU walks the host's page tables (Grace) the driver pins nothing and copies
// are fast all the same. A CudaHostPinner is constant after construction; the table and the context
// outlive it.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/status.h"
#include "platform/cuda/driver_api.h"
#include "platform/host_pinner.h"

namespace tencache {

class CudaHostPinner final : public HostPinner {
 public:
  CudaHostPinner(const DriverApi& driver, CUcontext context) : driver_(driver), context_(context) {}

  Status pin(void* memory, uint64_t bytes) override;
  /// A refusal is logged: the memory stays pinned until its context is destroyed. Does nothing,
  /// silently, where the driver must not be called.
  void unpin(void* memory, uint64_t bytes) override;

 private:
  const DriverApi& driver_;
  const CUcontext context_;
};

}  // namespace tencache
