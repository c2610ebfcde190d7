// SPDX-License-Identifier: Apache-2.0
//
// Functions that ask the kernel whether a page may be read or written: a system call on
// inaccessible memory fails with EFAULT, where user code would get a signal. Threads: any.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include "base/check.h"

namespace tencache {

/// Whether write(2) can read one byte at `address`.
inline bool is_readable(const void* address) {
  int ends[2];
  TENCACHE_CHECK(pipe(ends) == 0);
  const bool readable = write(ends[1], address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

/// Writes one zero byte at `address` through read(2); returns whether that worked.
inline bool overwrite_with_zero(void* address) {
  const int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  TENCACHE_CHECK(zeros >= 0);
  const bool written = read(zeros, address, 1) == 1;
  close(zeros);
  return written;
}

}  // namespace tencache
