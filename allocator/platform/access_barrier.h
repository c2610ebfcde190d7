// SPDX-License-Identifier: Apache-2.0
//
// AccessBarrier: makes everybody who touches a range wait while its pages are elsewhere, by the
// kernel's userfaultfd. It stops reads and writes, of the program and of the kernel on its behalf,
// so the pages of an extent that becomes cold can be moved away whole. The barrier of mprotect and
// a signal handler (platform/write_barrier.h) cannot do that: system calls that read would fail. An
// AccessBarrier needs a privilege: CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1, or access to
// /dev/userfaultfd.
//
// The kernel's unprivileged variant stops user code alone, which is not enough to move pages. It is
// enough to make writers wait (protect), as mprotect does, yet without a signal: a thread may block
// SIGSEGV. A system call that writes gets EFAULT meanwhile.
//
// If the program closes the descriptor, no range can be closed any more, and the process ends where
// one is closed already: the kernel has let the waiting threads go on.
//
// In a forked child the ranges are ordinary memory. Threads: any; no locks.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/kept_fd.h"
#include "base/status.h"

namespace tencache {

class AccessBarrier {
 public:
  /// Opens the privileged variant. Returns kUnavailable where the kernel gives no descriptor; where
  /// a privilege is missing, the message says what would help.
  static Result<std::unique_ptr<AccessBarrier>> open();
  /// Opens the unprivileged variant, of which only protect(), unprotect() and wake() are of use.
  static Result<std::unique_ptr<AccessBarrier>> open_unprivileged();

  /// Whether it stops the kernel on behalf of the program, too, and so close() may be used.
  bool stops_everybody() const { return stops_everybody_; }

  /// From now on a thread that touches a missing page of the range waits. REQUIRES: the range is
  /// anonymous memory of whole pages.
  Status close(char* address, uint64_t bytes) const;
  /// Waiting threads try again. REQUIRES: every page of the range has been mapped anew, by mmap()
  /// or mremap(), which ends the effect of close().
  void wake(char* address, uint64_t bytes) const;
  /// Ends the effect of close() also for pages that were not mapped anew.
  void reopen(char* address, uint64_t bytes) const;
  /// Copies pages that were moved away back into a closed range, for the case that mremap() is
  /// refused.
  Status copy_back(const char* source, char* address, uint64_t bytes) const;

  /// From now on a thread that writes to the range waits, in user code; reads go on. REQUIRES: the
  /// range is whole pages, all of which can be read. Fails for other than anonymous memory, and on
  /// kernels before 5.7. wake() ends the protection where the range was mapped anew.
  Status protect(char* address, uint64_t bytes) const;
  void unprotect(char* address, uint64_t bytes) const;

 private:
  AccessBarrier(KeptFd file, bool stops_everybody)
      : file_(std::move(file)), stops_everybody_(stops_everybody) {}
  static Result<std::unique_ptr<AccessBarrier>> start(KeptFd file, bool stops_everybody);
  Status add(char* address, uint64_t bytes, uint64_t mode) const;
  Status set_writable(char* address, uint64_t bytes, bool is_writable) const;

  const KeptFd file_;
  const bool stops_everybody_;
};

}  // namespace tencache
