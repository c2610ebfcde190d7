// SPDX-License-Identifier: Apache-2.0
//
// Gpu: one device, its primary context (the one that PyTorch uses too), and what it offers that the
// cuda backend builds on. Constant after open(); any thread. The table outlives it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "platform/cuda/driver_api.h"

namespace tencache {

struct GpuFacts {
  std::string name;
  uint64_t total_bytes = 0;          // of device memory
  uint64_t granularity_bytes = 0;    // frames are multiples of this
  int numa_node = -1;                // of the host memory next to it; -1: the machine has no NUMA
  bool can_map_host_memory = false;  // memory of that node at device addresses
  bool can_do_rdma = false;          // to frames, by other devices
};

/// What a device offers; makes no context. kUnavailable, with the reason, when it cannot do what
/// the backend stands on: mapping memory under addresses.
Result<GpuFacts> find_gpu_facts(const DriverApi& driver, CUdevice device);

/// What frames of a device are created with.
CUmemAllocationProp frame_properties(CUdevice device, const GpuFacts& facts);

class Gpu {
 public:
  /// kInvalidArgument when there is no device of that number; else as find_gpu_facts(), or
  /// driver_use_status().
  static Result<std::unique_ptr<Gpu>> open(const DriverApi& driver, int ordinal);
  /// Gives up the context, which goes on for others.
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const DriverApi& driver() const { return driver_; }
  CUdevice device() const { return device_; }
  CUcontext context() const { return context_; }
  const GpuFacts& facts() const { return facts_; }

  /// OK while the context takes work. A kernel that fails ends it for good, and from then on every
  /// call is told of that: so what fails later tells nothing of its own reason. As
  /// driver_use_status() where the driver may not be called.
  Status status() const;

 private:
  Gpu(const DriverApi& driver, CUdevice device, GpuFacts facts, CUcontext context)
      : driver_(driver), device_(device), facts_(std::move(facts)), context_(context) {}

  const DriverApi& driver_;
  const CUdevice device_;
  const GpuFacts facts_;
  const CUcontext context_;
};

}  // namespace tencache
