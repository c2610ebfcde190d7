// SPDX-License-Identifier: Apache-2.0
//
// DirectReads: reads slots straight into the GPU where the machine can do that
// (platform/cuda/direct_storage.h), and leaves host memory out. The hash that was made on the GPU
// when the extent left proves what was read. From the first failure on, everything comes by host
// memory.
//
// DirectReads knows whether this way is open; its caller closes it after a failure.
//
// Threads: any; the calling thread waits for the disk. Lock-free.
#pragma once

#include <atomic>

#include "base/status.h"
#include "engine/move/cuda/stream_parts.h"
#include "memory/cuda/cuda_heap.h"
#include "platform/cuda/copy_stream.h"
#include "platform/cuda/direct_storage.h"

namespace tencache {

class DirectReads {
 public:
  /// This way is never open where `storage` is null or there is no hasher. `storage` reads the file
  /// of the spill's disk. The arguments outlive this object.
  DirectReads(const StreamParts& parts, DirectStorage* storage)
      : parts_(parts), storage_(parts.hasher != nullptr ? storage : nullptr) {}

  bool is_open() const { return storage_.load() != nullptr; }
  /// Reads the slot of an extent that has a frame, and proves it. After a failure nothing uses the
  /// frame any more.
  Status read(const CudaExtent& extent, CopyStream& stream);
  void close(const Status& reason);

 private:
  const StreamParts& parts_;
  std::atomic<DirectStorage*> storage_;  // null: closed
};

}  // namespace tencache
