// SPDX-License-Identifier: Apache-2.0
//
// HeapBooks: what the suites see inside the heaps, which name it their friend. It walks over lists,
// tables and addresses, and tells whether they agree.
#pragma once

#include <cstdint>

#include "memory/cpu_heap.h"
#include "memory/cuda/cuda_heap.h"
#include "memory/extent_pool.h"
#include "memory/malloc_use.h"
#include "memory/slabs.h"

namespace tencache {

struct HeapBooks {
  /// REQUIRES: no other thread allocates or frees.
  static bool are_valid(const CpuHeap& heap);
  static bool are_valid(const CudaHeap& heap);
  static bool are_valid(const Slabs& slabs);
  /// Whether as many granules are in use as the extents that are not Vacant and `other_bytes` take.
  template <typename ExtentType>
  static bool are_valid(const ExtentPool<ExtentType>& pool, uint64_t other_bytes);

  static uint64_t slab_count(const CpuHeap& heap) { return slab_count(heap.slabs_); }
  static uint64_t slab_count(const Slabs& slabs);
  static const MallocUse& malloc_use(const CpuHeap& heap) { return heap.malloc_use_; }
};

}  // namespace tencache
