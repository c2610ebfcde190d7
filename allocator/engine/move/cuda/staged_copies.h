// SPDX-License-Identifier: Apache-2.0
//
// StagedCopies: copies between a GPU and host memory that is not pinned, through the pinned buffers
// of a StagingRing. While a copy engine works on one buffer the processor fills or empties the
// next. One object serves one batch on one stream; its destructor waits for what is under way and
// gives the buffers back.
//
// Order: a copy begins after what the stream was given before, and what the stream is given next
// begins after it, as with a plain copy. The calling thread takes part in the copying: to_device()
// returns when the last bytes are in buffers, to_host() when all are in host memory.
//
// A thread that holds buffers waits for its own copies and never for another thread's buffers. One
// that holds none waits for those of others, which go on. So no two threads wait for each other.
//
// Threads: the one that made it. The ring is shared.
#pragma once

#include <cstdint>
#include <deque>

#include "base/status.h"
#include "platform/cuda/copy_stream.h"
#include "platform/cuda/stream_mark.h"
#include "tier/staging_ring.h"

namespace tencache {

class StagedCopies {
 public:
  /// `stream` and `ring` outlive this object.
  StagedCopies(CopyStream& stream, StagingRing& ring) : stream_(stream), ring_(ring) {}
  ~StagedCopies();
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  /// These two copy through buffers of the ring. When to_device() returns, the host memory may be
  /// used again; the device has the bytes when a mark that is made afterwards is reached. After a
  /// failure some bytes may have been copied, and nothing is under way any more.
  Status to_device(CUdeviceptr device, const char* host, uint64_t bytes);
  Status to_host(char* host, CUdeviceptr device, uint64_t bytes);

 private:
  /// A buffer that the device still reads, or writes on the way to `target`.
  struct Piece {
    StagingBuffer buffer;
    StreamMark done;
    char* target = nullptr;
    uint64_t bytes = 0;
  };

  Result<StagingBuffer> take_buffer();
  Status add_piece(const StagingBuffer& buffer, char* target, uint64_t bytes);
  Status finish_oldest();
  Status finish();
  Status fail(const Status& reason);

  CopyStream& stream_;
  StagingRing& ring_;
  std::deque<Piece> under_way_;
};

}  // namespace tencache
