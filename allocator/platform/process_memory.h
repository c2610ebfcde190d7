// SPDX-License-Identifier: Apache-2.0
//
// ProcessMemory: how many bytes of anonymous pages the process has, by /proc/self/statm. One look
// costs a microsecond. The kernel keeps the figure by processor, so it may lag by some pages.
//
// Threads: any (pread).
#pragma once

#include <cstdint>
#include <memory>

#include "base/kept_fd.h"
#include "base/status.h"

namespace tencache {

class ProcessMemory {
 public:
  static Result<std::unique_ptr<ProcessMemory>> open();

  /// Returns 0 where the figure cannot be read, or where the program has closed the file.
  uint64_t anonymous_bytes() const;

 private:
  explicit ProcessMemory(KeptFd file);

  const KeptFd file_;
};

}  // namespace tencache
