// SPDX-License-Identifier: Apache-2.0
//
// HostMemory: one piece of anonymous memory, made to be pinned. It begins where a huge page can and
// lies on a chosen NUMA node that has room. Every page is present before map() returns, because a
// driver that has to make the pages while it pins them takes several times as long. Threads on the
// node's processors touch it together; that alone puts the pages there, even where a container
// refuses to bind memory.
//
// Note [Fork]: by default a child process does not inherit this memory (MADV_DONTFORK). After a
// fork, writing to a page that parent and child share gives the writer a copy. A device that has
// the page pinned would go on with the old one, and parent and device would no longer see the same
// bytes. A child never reads this memory, because it cannot use a GPU that its parent used. The
// child saves page tables, the parent saves copies, and the child's counterpart of a HostMemory
// owns nothing. Where the program itself has the memory, a child may read it, so it has the same
// pages as its parent (is_shared), as it does with memory that CUDA's driver has pinned.
//
// A HostMemory is movable, has one owner and is not thread-safe; access to its bytes is the owner's
// affair.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/mapped_pages.h"
#include "base/status.h"

namespace tencache {

struct HostMemoryRequest {
  uint64_t bytes = 0;      // multiple of the page size
  int node = -1;           // NUMA node; -1 = wherever the kernel puts it
  unsigned threads = 1;    // number of threads that touch it
  bool is_shared = false;  // a forked child has it, too; either one sees what the other writes
};

/// Which optional wishes of a request were honoured.
struct HostPlacement {
  int node = -1;  // as asked
  // Why the kernel did not bind the memory to the node, and why the threads that touched it did not
  // run on processors of the node. Each text is empty when that was done, or no node was asked for.
  std::string bind_refusal;
  std::string threads_refusal;
  unsigned threads = 0;             // number that touched it
  bool populated_by_kernel = true;  // in one call for many pages; else page by page
};

class HostMemory {
 public:
  /// Returns kOutOfMemory, with value, reason and remedy, where memory or address space does not
  /// suffice.
  static Result<HostMemory> map(const HostMemoryRequest& request);

  /// Takes over a mapping of whole pages.
  HostMemory(char* memory, uint64_t bytes, HostPlacement placement)
      : memory_(memory, Unmap{bytes}), placement_(std::move(placement)) {}

  char* data() const { return memory_.get(); }
  uint64_t bytes() const { return memory_.get_deleter().bytes; }
  const HostPlacement& placement() const { return placement_; }

 private:
  MappedPages memory_;
  HostPlacement placement_;
};

inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

/// Maps `bytes` of fresh memory that begins where a huge page can, and asks for huge pages if the
/// memory holds one. Returns null and sets errno when there is no memory. `flags` are those of
/// mmap() besides MAP_ANONYMOUS. The caller unmaps the memory.
char* map_huge_aligned(uint64_t bytes, int flags = MAP_PRIVATE);

}  // namespace tencache
