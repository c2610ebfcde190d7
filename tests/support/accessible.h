// SPDX-License-Identifier: Apache-2.0
//
// Asks the kernel whether a page may be read or written: a system call on inaccessible memory
// returns EFAULT, where user code would get a signal. Threads: any.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include "base/check.h"

namespace tencache {

/// Reads one byte there through write(2).
inline bool is_readable(const void* address) {
  int ends[2];
  TENCACHE_CHECK(pipe(ends) == 0);
  const bool readable = write(ends[1], address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

/// Writes one zero byte there through read(2).
inline bool overwrite_with_zero(void* address) {
  const int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  TENCACHE_CHECK(zeros >= 0);
  const bool written = read(zeros, address, 1) == 1;
  close(zeros);
  return written;
}

}  // namespace tencache
