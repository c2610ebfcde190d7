// SPDX-License-Identifier: Apache-2.0
//
// IoChannel: what moves segments of memory to and from one file, with several requests in flight.
// Two implementations, io_uring and a pool of threads with pread/pwrite, behave alike; tests put a
// faulty one in their place. A channel serves one transfer at a time (DiskTier lends channels out).
// The transfer runs on the calling thread until all is done or a request failed.
//
// Segments are cut into pieces of at most kPieceBytes. Pieces are submitted in order, complete in
// any order, and are reported in order, so that a hash can be fed while later pieces are in flight.
//
// A write may leave the memory to the channel: the channel writes a segment without memory from its
// own buffers (bounce_ring.h), which the observer fills piece by piece. All such writes use these
// buffers, so io_uring can hold them pinned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace tencache {

/// The largest request to the kernel; 1 MiB with 4-16 in flight saturates an NVMe.
inline constexpr size_t kPieceBytes = size_t{1} << 20;

/// A piece is submitted only while fewer than this many pieces ahead of it have yet to be reported
/// complete. This bounds the buffers of a channel to 32 MiB, whatever its depth.
inline constexpr size_t kWindowPiecesMax = 32;

/// Memory, file offsets and sizes are multiples of this (O_DIRECT; a page).
inline constexpr size_t kIoAlignment = 4096;

/// What the file of a channel is called in messages.
inline constexpr const char* kSpillFile = "the spill file";

enum class IoDirection : uint8_t { kRead, kWrite };

/// `bytes` bytes between `memory` and the file at `offset`. All three are multiples of
/// kIoAlignment. Memory is null only in a write for which the observer brings the bytes.
struct IoSegment {
  char* memory = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;

  /// The address of the byte at `file_offset`.
  char* memory_at(uint64_t file_offset) const { return memory + (file_offset - offset); }
};

/// An observer of a transfer. It hears of every piece, on the thread that runs the transfer.
/// Offsets are file offsets.
class PieceObserver {
 public:
  virtual ~PieceObserver() = default;
  /// The channel calls this just before the piece is submitted from or to `memory`. In a write the
  /// observer may hash the piece now, and fills it if its segment has no memory. False cancels the
  /// transfer: nothing more is submitted, requests in flight are awaited, and transfer() returns ok
  /// with `cancelled` set.
  virtual bool before_submit(size_t segment, uint64_t offset, char* memory, size_t bytes) = 0;
  /// The channel calls this after the piece and all pieces before it are complete; in a read the
  /// observer may hash the piece now.
  virtual void after_complete(size_t segment, uint64_t offset, size_t bytes) = 0;
  /// The channel calls this when every segment has been handed out, and again while pieces of them
  /// are in flight. Returns one more segment, with memory, or false when there is none now. So one
  /// transfer goes on where the disk would otherwise run dry between two.
  virtual bool next_segment(IoSegment* /*segment*/) { return false; }
};

struct TransferResult {
  Status status;           // the first failure, naming direction, file offset, bytes and errno
  bool cancelled = false;  // before_submit returned false
  uint64_t bytes = 0;      // moved by requests that completed
};

class IoChannel {
 public:
  virtual ~IoChannel() = default;
  /// Transfers all segments, and those that the observer adds. Continues short transfers, repeats
  /// EINTR and EAGAIN, and a few times a write that fails otherwise; end of file in a read is
  /// kDataLoss. On return no request is in flight, whatever happened. `observer` may be null where
  /// every segment has memory.
  virtual TransferResult transfer(IoDirection direction, std::span<const IoSegment> segments,
                                  PieceObserver* observer) = 0;
  virtual const char* name() const = 0;  // "io_uring" or "threads"
};

/// Makes a channel over io_uring with `depth` requests in flight. Returns kUnavailable, with the
/// reason, where the kernel or the container refuses it (EPERM or ENOSYS, say). The channel
/// registers its buffers where the kernel allows it, unless `registers_buffers` is false.
Result<std::unique_ptr<IoChannel>> make_uring_channel(int fd, unsigned depth,
                                                      bool registers_buffers = true);

/// Registers buffers like those of a channel of this depth, for a moment. Returns ok, or the reason
/// why io_uring or the registration is refused.
Status try_registered_buffers(int fd, unsigned depth);

/// Makes a channel over `threads` threads that pread and pwrite. They start at the first transfer.
std::unique_ptr<IoChannel> make_thread_channel(int fd, unsigned threads);

}  // namespace tencache
