// SPDX-License-Identifier: Apache-2.0
//
// HeapObserver: who wants to hear when addresses of a CudaHeap come and go, for a history of the
// memory. What the program itself does, allocating and freeing, it knows without being told.
//
// Threads: any, with locks of the heap held: an observer only makes a note, and calls nothing of
// the heap. It hears that something is gone before anybody else can have the same address.
#pragma once

#include <cstdint>

#include "platform/cuda/driver_api.h"

namespace tencache {

enum class HeapEvent : uint8_t {
  kSegmentMade,    // addresses for blocks, or of one extent
  kSegmentGone,    // nothing lies at them any more
  kFreeCompleted,  // streams are done with a block that was freed before; its requested bytes
};

class HeapObserver {
 public:
  HeapObserver() = default;
  virtual ~HeapObserver() = default;
  HeapObserver(const HeapObserver&) = delete;
  HeapObserver& operator=(const HeapObserver&) = delete;

  virtual void note(HeapEvent event, CUdeviceptr address, uint64_t bytes) = 0;
};

}  // namespace tencache
