// SPDX-License-Identifier: Apache-2.0
//
// CachedReader: a reader of the spill file through the page cache. So it sees the very bytes that a
// cold mapping shows (Note [Cold mapping] in platform/address_arena.h). A page that the disk does
// not give is an error, and no SIGBUS (but where a sandbox forbids process_vm_readv()). The reader
// works in a forked child, too, as long as the child has the descriptor: the reader makes sure that
// the descriptor still is the spill file's.
//
// Threads: any, because a reader does not change after its construction.
#pragma once

#include <cstdint>
#include <span>

#include "base/kept_fd.h"
#include "base/status.h"

namespace tencache {

class CachedReader {
 public:
  /// The reader does not own the descriptor.
  explicit CachedReader(int fd) : fd_(fd), identity_(FileIdentity::of(fd)) {}

  /// Fills `memory` from the offset, a multiple of the page size. Returns kUnavailable where the
  /// descriptor is not the file's any more, and only there. Returns kIoError where the bytes cannot
  /// be read.
  Status read(uint64_t offset, std::span<char> memory) const;

 private:
  int read_anew(uint64_t offset, std::span<char> memory, int refusal) const;

  const int fd_;
  const FileIdentity identity_;
};

}  // namespace tencache
