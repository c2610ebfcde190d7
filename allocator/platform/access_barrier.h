// SPDX-License-Identifier: Apache-2.0
//
// AccessBarrier: makes everybody who touches a range wait while its pages are elsewhere, by the
// kernel's userfaultfd. It stops reads and writes, of the program and of the kernel on its behalf,
// so the pages of an extent that becomes cold can be moved away whole. The barrier of mprotect and
// a signal handler (platform/write_barrier.h) cannot do that: system calls that read would fail.
//
// It needs a privilege: CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1, or access to
// /dev/userfaultfd. The kernel's unprivileged variant stops user code alone, which is not enough.
//
// In a forked child the ranges are ordinary memory. Threads: any; no locks.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tencache {

class AccessBarrier {
 public:
  /// kUnavailable where the kernel refuses; the message says what would help.
  static Result<std::unique_ptr<AccessBarrier>> open();

  /// From now on a thread that touches a missing page of the range waits. REQUIRES: the range is
  /// anonymous memory of whole pages.
  Status close(char* address, uint64_t bytes) const;
  /// Waiting threads try again. REQUIRES: every page of the range has been mapped anew, by mmap()
  /// or mremap(), which ends the effect of close().
  void wake(char* address, uint64_t bytes) const;
  /// Ends the effect of close() also for pages that were not mapped anew.
  void reopen(char* address, uint64_t bytes) const;
  /// Copies pages that were moved away back into a closed range; for the case that mremap() is
  /// refused.
  Status copy_back(const char* source, char* address, uint64_t bytes) const;

 private:
  explicit AccessBarrier(UniqueFd fd) : fd_(std::move(fd)) {}
  const UniqueFd fd_;
};

}  // namespace tencache
