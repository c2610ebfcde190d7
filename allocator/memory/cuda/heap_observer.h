// SPDX-License-Identifier: Apache-2.0
//
// HeapObserver: hears when addresses of a CudaHeap come and go, for a history of the memory. It
// does not hear of the program's own allocations and frees.
//
// Threads: any, with no lock or that of a BlockPool held, so an observer only makes a note and
// never calls the heap. The observer hears that something is gone before anybody else can have the
// same address.
#pragma once

#include <cstdint>

namespace tencache {

enum class HeapEvent : uint8_t {
  kSegmentMade,  // addresses for blocks, or those of one extent
  kSegmentGone,  // nothing lies at these addresses any more
  // Streams are done with a block that was freed before; its bytes are told as requested.
  // BlockPool::restore() waits for the streams of the blocks that it frees, so the observer hears
  // of no completion then.
  kFreeCompleted,
};

struct HeapObserver {
  /// A callback of the C ABI: `event` is the number of a HeapEvent.
  void (*note)(void* context, int event, uintptr_t address, uint64_t bytes) = nullptr;
  void* context = nullptr;
};

}  // namespace tencache
