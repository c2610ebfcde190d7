// SPDX-License-Identifier: Apache-2.0
//
// DirectStorage: reads a file straight into the memory of one GPU, through cuFile. The disk writes
// into a few buffers on the GPU that are registered for that once. An extent's own memory comes and
// goes, and registering it would cost more than the device's copy from a buffer. No budget counts
// the buffers.
//
// DirectStorage has not run on a GPU yet. The caller has to prove that the bytes read are those
// written.
//
// Threads: any. mutex_ is held for bookkeeping only, never during a read. A thread that finds no
// free buffer waits.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/units.h"
#include "platform/cuda/cufile_api.h"
#include "platform/cuda/device_arena.h"
#include "platform/cuda/frame_pool.h"
#include "platform/cuda/gpu.h"
#include "platform/cuda/stream_mark.h"

namespace tencache {

class DirectStorage {
 public:
  static constexpr uint64_t kBufferBytes = 8 * kMiB;
  static constexpr uint64_t kBuffers = 4;

  /// `descriptor` is of a file opened with O_DIRECT. Returns kUnavailable, with the reason, where
  /// this machine cannot read disks, or this file, directly: cuFile would then copy through host
  /// memory, as the other path does too. The GPU, the marks and the file outlive the object; `api`
  /// is copied.
  static Result<std::unique_ptr<DirectStorage>> open(const Gpu& gpu, StreamMarks& marks,
                                                     const CuFileApi& api, int descriptor);
  /// REQUIRES: nothing is being read.
  ~DirectStorage();
  DirectStorage(const DirectStorage&) = delete;
  DirectStorage& operator=(const DirectStorage&) = delete;

  /// Reads bytes of the file, which are at the address when the call returns. REQUIRES: the range
  /// is mapped, and no other work of the device uses it; offset and size are multiples of 4096.
  /// After a failure the contents of the range are undefined.
  Status read(CUstream stream, CUdeviceptr address, uint64_t bytes, uint64_t offset)
      TENCACHE_EXCLUDES(mutex_);

 private:
  DirectStorage(const Gpu& gpu, StreamMarks& marks, const CuFileApi& api)
      : gpu_(gpu), marks_(marks), api_(api), frames_(gpu, kBuffers * kBufferBytes) {}
  Status open_file(int descriptor);
  Status make_buffers();
  CUdeviceptr take_buffer() TENCACHE_EXCLUDES(mutex_);
  void give_back_buffer(CUdeviceptr buffer) TENCACHE_EXCLUDES(mutex_);
  Status read_piece(CUstream stream, CUdeviceptr buffer, CUdeviceptr address, uint64_t bytes,
                    uint64_t offset) const;

  const Gpu& gpu_;
  StreamMarks& marks_;
  const CuFileApi api_;
  // These five are constant once open() has returned.
  CuFileHandle file_ = nullptr;
  FramePool frames_;
  Frame frame_;
  std::unique_ptr<DeviceArena> arena_;
  uint64_t registered_count_ = 0;  // number of registered buffers

  Mutex mutex_;
  CondVar has_free_;
  std::vector<CUdeviceptr> free_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
