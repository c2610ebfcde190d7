// SPDX-License-Identifier: Apache-2.0
//
// BounceRing: the buffers, one piece each, from which a channel writes segments without memory
// (io_channel.h). It belongs to its channel, which serves one transfer at a time. The buffers are
// reused all the time, so the kernel may pin their pages for the channel (registered buffers;
// uring_channel.cpp).
//
// The pages are huge where the kernel has some: the device reads from huge pages twice as fast as
// from small ones (5 against 2 GB/s on a virtual NVMe), because a request is then one piece of
// physical memory and not 256. The pages appear as buffers are used, so small transfers need
// little. A forked child does not inherit the pages: it runs no transfer, and the kernel would have
// to copy pinned pages at the fork itself. Threads: those of the channel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/mapped_pages.h"
#include "base/status.h"
#include "tier/io_channel.h"

namespace tencache {

class BounceRing {
 public:
  static Result<std::unique_ptr<BounceRing>> create(size_t pieces);

  /// The buffer of the transfer's piece with this number. The buffer is free for it once the piece
  /// that comes pieces() before it is complete.
  char* buffer(uint64_t number) {
    used_pieces_ = std::max(used_pieces_, number + 1);
    return memory_.get() + number % pieces_ * kPieceBytes;
  }

  size_t pieces() const { return pieces_; }
  /// All buffers, one behind the other.
  std::span<char> memory() const { return {memory_.get(), pieces_ * kPieceBytes}; }
  /// Whether every buffer has been used once, so that all pages are there.
  bool is_all_used() const { return used_pieces_ >= pieces_; }

 private:
  BounceRing(char* memory, size_t pieces)
      : memory_(memory, Unmap{pieces * kPieceBytes}), pieces_(pieces) {}

  const MappedPages memory_;
  const size_t pieces_;
  uint64_t used_pieces_ = 0;
};

/// Whether a transfer of these segments needs a ring.
bool has_segment_without_memory(std::span<const IoSegment> segments);

}  // namespace tencache
