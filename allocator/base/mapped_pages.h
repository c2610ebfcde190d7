// SPDX-License-Identifier: Apache-2.0
//
// MappedPages: owns pages and unmaps them once, in the process that has mapped them. A forked child
// may have the object and not the pages, and other memory in their place. The class is not
// thread-safe.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <memory>

namespace tencache {

struct Unmap {
  size_t bytes = 0;
  pid_t owner_pid = getpid();

  void operator()(char* memory) const {
    if (getpid() == owner_pid) munmap(memory, bytes);
  }
};

using MappedPages = std::unique_ptr<char, Unmap>;

}  // namespace tencache
