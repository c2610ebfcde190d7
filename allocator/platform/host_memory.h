// SPDX-License-Identifier: Apache-2.0
//
// HostMemory: one piece of anonymous memory that is there for good, made to be pinned: it begins
// with a huge page, lies on a chosen NUMA node, and every page of it is present before map()
// returns, because a driver that has to make the pages while it pins them takes several times as
// long. Threads that run on the node's processors touch it together; that alone puts the pages
// there, also where a container refuses to bind memory.
//
// Note [Fork]: a child process does not get this memory (MADV_DONTFORK). After a fork, writing to a
// page that parent and child share gives the writer a copy; a device that has the page pinned would
// go on with the old one, and parent and device would no longer see the same bytes. Nothing in a
// child reads this memory: a child can use no GPU that its parent used. It saves the child the page
// tables and the parent the copies, and the child's counterpart of a HostMemory owns nothing.
//
// Movable, one owner, not thread-safe; the bytes are the owner's affair.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tencache {

struct HostMemoryRequest {
  uint64_t bytes = 0;    // multiple of the page size
  int node = -1;         // NUMA node; -1 = wherever the kernel puts it
  unsigned threads = 1;  // that touch it
};

/// What became of the wishes of a request; none of them is needed.
struct HostPlacement {
  int node = -1;                    // as asked
  bool is_bound = false;            // the kernel took the node as this memory's
  std::string bind_refusal;         // why not; empty when no node was asked
  unsigned threads = 0;             // that touched it
  bool threads_on_node = false;     // on processors of the node
  std::string threads_refusal;      // why not; empty when no node was asked
  bool populated_by_kernel = true;  // in one call for many pages; else page by page
};

class HostMemory {
 public:
  /// kOutOfMemory, with value, reason and remedy, where there is no such memory or address space.
  static Result<HostMemory> map(const HostMemoryRequest& request);

  /// Takes over a mapping of whole pages.
  HostMemory(char* memory, uint64_t bytes, HostPlacement placement);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;

  char* data() const { return memory_; }
  uint64_t bytes() const { return bytes_; }
  const HostPlacement& placement() const { return placement_; }

 private:
  void unmap();

  char* memory_;
  uint64_t bytes_;
  pid_t owner_pid_;  // a forked child does not have the mapping
  HostPlacement placement_;
};

/// `bytes` of fresh private memory that begins with a huge page and asks for huge pages; null with
/// errno set when there is none. To be unmapped by the caller.
char* map_huge_aligned(uint64_t bytes);

}  // namespace tencache
