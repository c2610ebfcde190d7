// SPDX-License-Identifier: Apache-2.0
//
// Types that the parts of the simulated driver share: its configuration, a range of device memory,
// and the failure of the context. Config and range are plain values. StickyFailure may be used by
// any thread; as on the real driver, the first failure stays until the driver is gone.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "base/units.h"

namespace tencache {

struct SimulatedDriverConfig {
  // Several devices differ by their numbers alone. Each has capacity_bytes; they share the copy
  // engines.
  int device_count = 1;
  bool has_peers = false;  // each device may use the memory of each other one
  std::string device_name = "Simulated GPU";
  uint64_t capacity_bytes = 256 * kMiB;   // of one device
  uint64_t granularity_bytes = 2 * kMiB;  // a power of two

  // The rate of each direction of copies. With 0, the copies of a direction run side by side, as
  // fast as they can. With a rate, the direction is one copy engine, which takes one copy after
  // another from all streams.
  uint64_t to_device_bytes_per_s = 0;
  uint64_t to_host_bytes_per_s = 0;
  uint64_t on_device_bytes_per_s = 0;
  // Bytes per second that a kernel launched through a module reads and writes, or 0 for no limit.
  uint64_t kernel_bytes_per_s = 0;
  uint64_t copy_latency_ns = 0;  // added to each copy, which occupies its engine meanwhile

  // Timed work is done at the beginning of its time, not at the end. Then a thread that waits for
  // it goes on in time, so the device's clock holds for the host too. The price: a program that
  // reads a target too early finds the right bytes.
  bool works_first = false;

  // A stream holds at most this many kernels; the next launch waits for room. Without a bound, a
  // program that never waits would fill the host's memory with them.
  uint64_t queued_kernels_max = UINT64_MAX;

  // Kernels may deliberately write the source of a copy to the host while the copy runs;
  // ThreadSanitizer is told to let that pass.
  bool reads_may_race = false;

  // A new stream gets the handle of the one that was destroyed last, as with an allocator.
  // Otherwise no handle is ever used again.
  bool reuses_stream_handles = false;

  bool has_host_numa_handles = true;  // whether cuMemCreate gives memory of a NUMA node
  int host_numa_id = 0;               // the node next to the device; -1 on a machine without NUMA

  uint64_t registered_bytes_max = UINT64_MAX;  // of host memory, all registrations together
  uint64_t registered_bytes_per_call_max = UINT64_MAX;  // of one call

  // Attributes that differ from those of a device of today.
  std::map<CUdevice_attribute, int> attributes = {};
};

/// A number that stands for any device that has access. Copies reach memory through whichever
/// device has access.
inline constexpr int kAnyDevice = -1;

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
  /// Returns CUDA_SUCCESS as long as nothing has failed.
  CUresult result() const { return result_.load(std::memory_order_relaxed); }
  bool is_set() const { return result() != CUDA_SUCCESS; }

 private:
  // Only the first failure is written, by whichever thread, and all threads read it. The write
  // orders nothing else, so it hides no race of the program from ThreadSanitizer.
  std::atomic<CUresult> result_ = CUDA_SUCCESS;
};

}  // namespace tencache
