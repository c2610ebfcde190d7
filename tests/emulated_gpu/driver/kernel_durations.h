// SPDX-License-Identifier: Apache-2.0
//
// The durations of kernels on the device's clock. A file (EMULATED_GPU_DURATIONS) or the running
// program sets them. Any other kernel takes the time that its work takes on the processor. A line
// of the file is
//
//   NAME SECONDS [BYTES/S]
//
// A launch takes SECONDS, plus the time of the bytes it touches at the rate, where there is one.
// NAME is a kernel's, `*` for all others, or NAME@BYTES for launches that touch this many bytes,
// which distinguishes the shapes of an operator. Empty lines and lines that begin with `#` are
// ignored. A line that cannot be read ends the process with an error that names it. Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/mutex.h"

namespace tencache {

class KernelDurations {
 public:
  struct Duration {
    double launch_s = 0;
    double bytes_per_s = 0;  // 0: the bytes take no time
  };

  /// Adds the lines of the file.
  void read(const char* path) TENCACHE_EXCLUDES(mutex_);
  void set(std::string_view name, Duration duration) TENCACHE_EXCLUDES(mutex_);
  /// Returns 0 for a kernel without a set duration.
  uint64_t duration_ns(std::string_view name, uint64_t bytes) const TENCACHE_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::map<std::string, Duration, std::less<>> durations_ TENCACHE_GUARDED_BY(mutex_);
};

/// The durations of the process, with the lines of EMULATED_GPU_DURATIONS.
KernelDurations& kernel_durations();

/// Whether EMULATED_GPU_DURATIONS is set: the device has a clock of its own.
bool has_device_clock();

}  // namespace tencache
