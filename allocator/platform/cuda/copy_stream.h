// SPDX-License-Identifier: Apache-2.0
//
// CopyStream: a stream of tencache's own on a GPU, for copies in one direction of the link to host
// memory or for hashes, so that they run beside the program's kernels and beside each other. Marks
// (platform/cuda/stream_mark.h) order copies and other work. A call returns as soon as the copy is
// queued. Host memory that is not pinned is copied correctly too, but the call then returns only
// when the copy has ended.
//
// Copies to pinned host memory heed a pause (platform/cuda/copy_pause.h). They are queued in pieces
// for that. A copy to other memory waits in the driver, where it must not wait for a mapping.
//
// Threads: any; copies run in the order in which they are queued.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "platform/cuda/copy_pause.h"
#include "platform/cuda/gpu.h"
#include "platform/cuda/stream_mark.h"

namespace tencache {

class CopyStream {
 public:
  /// `pause` may be null: then copies to the host go on.
  static Result<std::unique_ptr<CopyStream>> create(const Gpu& gpu, StreamMarks& marks,
                                                    const CopyPause* pause = nullptr);
  /// Queued copies still run.
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  CUstream handle() const { return stream_; }

  /// Copies queued from now on begin after the mark is reached.
  Status wait_for(const StreamMark& mark) { return mark.hold_back(stream_); }
  /// REQUIRES: the device's range stays mapped, and the host memory as it is, until the device
  /// reaches a mark that is made afterwards.
  Status to_host(void* host, CUdeviceptr device, uint64_t bytes, bool is_pinned = true);
  Status to_device(CUdeviceptr device, const void* host, uint64_t bytes);
  /// Blocks the calling thread until all copies so far have arrived. A refused wait is asked for
  /// once more, because others get the memory of the copies afterwards.
  Status wait_until_idle();
  /// Makes a mark that is reached when all copies so far have arrived.
  Result<StreamMark> mark() { return marks_.make(stream_); }

 private:
  CopyStream(const Gpu& gpu, StreamMarks& marks, CUstream stream, const CopyPause* pause)
      : gpu_(gpu), marks_(marks), stream_(stream), pause_(pause) {}

  uint64_t begin_piece(uint64_t bytes);
  Status try_wait();

  const Gpu& gpu_;
  StreamMarks& marks_;
  const CUstream stream_;
  const CopyPause* const pause_;
  std::atomic<uint64_t> piece_bytes_{CopyPause::kPieceBytes};  // queued since it last held back
};

}  // namespace tencache
