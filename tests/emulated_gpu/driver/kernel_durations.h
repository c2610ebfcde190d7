// SPDX-License-Identifier: Apache-2.0
//
// How long kernels take on the device's clock. A file says it (EMULATED_GPU_DURATIONS), or the
// program does while it runs; a kernel that nobody says anything about takes what its work takes on
// the processor. A line of the file is
//
//   NAME SECONDS [BYTES/S]
//
// SECONDS for a launch, and the time for the bytes that it touches at the rate, where there is one.
// NAME is a kernel's, `*` for all others, or NAME@BYTES for those launches that touch so many
// bytes: that tells the shapes of an operator apart. An empty line, or one that begins with `#`, is
// none. A line that cannot be read ends the process with an error that names it. Any thread.
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
  /// 0 for a kernel that nobody says anything about.
  uint64_t duration_ns(std::string_view name, uint64_t bytes) const TENCACHE_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::map<std::string, Duration, std::less<>> durations_ TENCACHE_GUARDED_BY(mutex_);
};

/// Those of the process, with the lines of EMULATED_GPU_DURATIONS.
KernelDurations& kernel_durations();

/// Whether EMULATED_GPU_DURATIONS is set: the device has a clock of its own.
bool has_device_clock();

}  // namespace tencache
