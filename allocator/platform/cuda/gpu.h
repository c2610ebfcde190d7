// SPDX-License-Identifier: Apache-2.0
//
// Gpu: one device, its primary context (the one that PyTorch uses too), and the features that the
// cuda backend builds on. A Gpu is constant after open(), and the driver's table outlives it.
// Threads: any.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "platform/cuda/call_scope.h"
#include "platform/cuda/driver_api.h"

namespace tencache {

struct GpuFacts {
  std::string name;
  uint64_t total_bytes = 0;        // of device memory
  uint64_t granularity_bytes = 0;  // frames are multiples of this
  int numa_node = -1;              // of the host memory next to it; -1: the driver names none
  bool can_do_rdma = false;        // other devices can reach frames
};

/// Reads what a device offers; makes no context. Returns kUnavailable, with the reason, when the
/// device lacks what the backend requires: mapping memory under addresses.
Result<GpuFacts> find_gpu_facts(const DriverApi& driver, CUdevice device);

/// The properties with which frames of a device are created.
CUmemAllocationProp frame_properties(CUdevice device, const GpuFacts& facts);

class Gpu {
 public:
  /// Returns kInvalidArgument when there is no device of that number. Other errors are those of
  /// find_gpu_facts(), of driver_use_status() or of the driver.
  static Result<std::unique_ptr<Gpu>> open(const DriverApi& driver, int ordinal);
  /// Releases the context, which lives on for others.
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const DriverApi& driver() const { return driver_; }
  CUdevice device() const { return device_; }
  CUcontext context() const { return context_; }
  const GpuFacts& facts() const { return facts_; }

  /// Returns OK while the context takes work. A kernel that fails breaks the context for good. From
  /// then on every call returns that error, so the error of a later call says nothing about its own
  /// cause.
  /// Returns driver_use_status() where the driver must not be called.
  Status status() const;
  /// Makes one call of the driver in a CallScope. `what` begins the message of a failure.
  template <typename Call>
  Status call(std::string_view what, const Call& make_call) const {
    const CallScope scope(driver_, context_);
    TENCACHE_RETURN_IF_ERROR(scope.status());
    return cuda_status(driver_, make_call(driver_), what);
  }

 private:
  Gpu(const DriverApi& driver, CUdevice device, GpuFacts facts, CUcontext context)
      : driver_(driver), device_(device), facts_(std::move(facts)), context_(context) {}
  Status ask() const;

  const DriverApi& driver_;
  const CUdevice device_;
  const GpuFacts facts_;
  const CUcontext context_;
};

}  // namespace tencache
