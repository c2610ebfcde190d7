// SPDX-License-Identifier: Apache-2.0
//
// What the parts of the simulated driver share: how it is set up, a range of device memory, and the
// failure of the context. Config and range are plain values. StickyFailure may be used by any
// thread; the first failure stays, as on the real driver, until the driver is gone.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "base/units.h"

namespace tencache {

struct SimulatedDriverConfig {
  // Several devices differ by number and have a capacity each; they share the copy engines.
  int device_count = 1;
  std::string device_name = "Simulated GPU";
  uint64_t capacity_bytes = 256 * kMiB;   // of one device
  uint64_t granularity_bytes = 2 * kMiB;  // a power of two

  // With 0, copies of a direction go as fast as they go, side by side; with a rate, the direction
  // is one copy engine, which takes one copy after another from all streams.
  uint64_t to_device_bytes_per_s = 0;
  uint64_t to_host_bytes_per_s = 0;
  uint64_t on_device_bytes_per_s = 0;
  // What a kernel that is launched through a module reads and writes in a second; 0: any amount.
  uint64_t kernel_bytes_per_s = 0;
  uint64_t copy_latency_ns = 0;  // on top of each copy, which keeps its engine for so long

  // Works that take time are done at its beginning and not at its end. Then whoever waits for one
  // goes on in time, so that the device's clock holds for the host too; but a program that reads a
  // target too early finds what it looked for.
  bool works_first = false;

  // What copies to the host read may be written by kernels meanwhile, on purpose: ThreadSanitizer
  // is told to let that pass.
  bool reads_may_race = false;

  bool has_host_numa_handles = true;  // whether cuMemCreate gives memory of a NUMA node
  int host_numa_id = 0;               // the node next to the device; -1 on a machine without NUMA

  uint64_t registered_bytes_max = UINT64_MAX;  // of host memory, all registrations together
  uint64_t registered_bytes_per_call_max = UINT64_MAX;  // of one call

  // Attributes that shall differ from what a device of today says.
  std::map<CUdevice_attribute, int> attributes = {};
};

/// Device addresses that a kernel uses.
struct DeviceRange {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  bool is_written = true;
};

class StickyFailure {
 public:
  void fail(CUresult result) {
    CUresult none = CUDA_SUCCESS;
    result_.compare_exchange_strong(none, result, std::memory_order_relaxed);
  }
  /// CUDA_SUCCESS as long as all is well.
  CUresult result() const { return result_.load(std::memory_order_relaxed); }
  bool is_set() const { return result() != CUDA_SUCCESS; }

 private:
  // Written once by any thread, read by all. It orders nothing else, so that it hides no race of
  // the program from ThreadSanitizer.
  std::atomic<CUresult> result_ = CUDA_SUCCESS;
};

}  // namespace tencache
