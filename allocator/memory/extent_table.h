// SPDX-License-Identifier: Apache-2.0
//
// ExtentTable: address -> extent in one load, interior pointers included. The table has one entry
// per granule of the arena; an extent owns all entries of the granules it covers. The array is
// reserved whole and gets memory where it is touched (8 bytes per 2 MiB).
//
// CpuHeap or CudaHeap writes an entry before it hands an extent out and when the extent's life has
// ended. Any thread may read, even inside a signal handler. Extent objects are never destroyed, so
// a stale entry still points to a readable one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "memory/extent.h"
#include "platform/address_arena.h"

namespace tencache {

class ExtentTable {
 public:
  /// Creates the table of an arena of this many bytes at `base`.
  static Result<std::unique_ptr<ExtentTable>> create(const char* base, uint64_t bytes);
  ~ExtentTable();
  ExtentTable(const ExtentTable&) = delete;
  ExtentTable& operator=(const ExtentTable&) = delete;

  /// The extent that contains `address`, or null. Any address is allowed.
  Extent* find(const void* address) const {
    const uint64_t distance =
        static_cast<uint64_t>(static_cast<const char*>(address) - arena_base_);
    if (distance >= arena_bytes_) return nullptr;
    return entries_[distance / kGranuleBytes].load(std::memory_order_acquire);
  }

  void set(const char* address, uint64_t bytes, Extent* extent);

 private:
  ExtentTable(const char* base, uint64_t bytes, std::atomic<Extent*>* entries,
              uint64_t mapped_bytes);

  // All members below are constant after create().
  const char* arena_base_;
  uint64_t arena_bytes_;
  std::atomic<Extent*>* entries_;
  uint64_t mapped_bytes_;
};

}  // namespace tencache
