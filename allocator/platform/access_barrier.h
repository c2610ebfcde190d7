// SPDX-License-Identifier: Apache-2.0
//
// AccessBarrier: lets everybody who touches a range wait while its pages are elsewhere, by the
// kernel's userfaultfd: reads and writes, by the program and by the kernel on its behalf. With it
// the pages of an extent that becomes cold can be kept; the barrier of mprotect and a signal
// handler (platform/write_barrier.h) cannot do that, because a system call that reads would fail.
//
// It takes a privilege: CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1, or access to
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
  /// kUnavailable where the kernel does not let us; the message says what would help.
  static Result<std::unique_ptr<AccessBarrier>> open();

  /// From now on whoever touches a page of the range that is missing waits. REQUIRES: the range is
  /// anonymous memory of whole pages.
  Status close(char* address, uint64_t bytes) const;
  /// Whoever waits looks again. REQUIRES: every page of the range has been mapped anew, by mmap()
  /// or mremap(), which ends what close() began.
  void wake(char* address, uint64_t bytes) const;
  /// Ends what close() began for pages that were not mapped anew, too.
  void reopen(char* address, uint64_t bytes) const;
  /// Copies pages into a closed range, from where they were moved to: the way back where mremap()
  /// is refused.
  Status copy_back(const char* source, char* address, uint64_t bytes) const;

 private:
  explicit AccessBarrier(UniqueFd fd) : fd_(std::move(fd)) {}
  const UniqueFd fd_;
};

}  // namespace tencache
