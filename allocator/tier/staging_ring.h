// SPDX-License-Identifier: Apache-2.0
//
// StagingRing: a few small pinned buffers through which blocks of pageable host memory are copied
// to and from a device. A copy engine reads pinned memory only; given pageable memory the driver
// copies through a buffer of its own while the calling thread waits. With two buffers of ours the
// processor copies into one while the device empties the other:
//
//   for each piece of the block:
//     buffer = try_acquire(); while there is none: wait for the event of the oldest piece on its
//     way,
//                                                  release() its buffer, try again
//     memcpy(buffer.memory, piece); enqueue the copy to the device; record an event behind it
//
// The memory, beside the budget of the host tier, is one pinned piece; no buffer crosses its end,
// and a copy from one buffer is within one registration. Where it cannot be pinned, the buffers are
// plain memory, is_pinned() says so and pin_refusal() why: copies are correct, and slower.
//
// Invariant: a buffer is free or with one holder. Threads: any may acquire and release; mutex_ is
// held for bookkeeping only. A forked child has no buffers (Note [Fork] in platform/host_memory.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/units.h"
#include "platform/host_memory.h"
#include "platform/host_pinner.h"

namespace tencache {

struct StagingRingConfig {
  /// 8 MiB take some 150 us at 50 GB/s, many times what starting a copy costs.
  uint64_t buffer_bytes = 8 * kMiB;  // rounded up to whole pages
  unsigned buffer_count = 2;
  int node = -1;                 // NUMA node; -1 = any
  HostPinner* pinner = nullptr;  // outlives the ring; null = plain memory
};

/// One buffer of a ring, aligned to a page. Trivially copyable; ownership is the holder's affair.
struct StagingBuffer {
  char* memory = nullptr;
  uint64_t bytes = 0;
};

class StagingRing {
 public:
  /// kOutOfMemory where there is not even plain memory.
  static Result<std::unique_ptr<StagingRing>> create(const StagingRingConfig& config);
  /// REQUIRES: every buffer was released.
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  /// A free buffer; waits for another thread to release one. A thread that holds all of them would
  /// wait for itself.
  StagingBuffer acquire() TENCACHE_EXCLUDES(mutex_);
  /// A free buffer, or nullopt when none is free now.
  std::optional<StagingBuffer> try_acquire() TENCACHE_EXCLUDES(mutex_);
  /// REQUIRES: the device has finished with it.
  void release(const StagingBuffer& buffer) TENCACHE_EXCLUDES(mutex_);

  bool is_pinned() const { return pin_refusal_.empty(); }
  /// Why the buffers are not pinned; empty when they are.
  const std::string& pin_refusal() const { return pin_refusal_; }
  unsigned buffer_count() const { return buffer_count_; }
  uint64_t buffer_bytes() const { return buffer_bytes_; }

 private:
  StagingRing(HostMemory memory, const StagingRingConfig& config, std::string pin_refusal);
  StagingBuffer take_free() TENCACHE_REQUIRES(mutex_);

  // Constant after construction.
  const HostMemory memory_;
  const uint64_t buffer_bytes_;
  const unsigned buffer_count_;
  HostPinner* const pinner_;
  const std::string pin_refusal_;
  const pid_t owner_pid_;

  Mutex mutex_;
  CondVar released_;
  std::vector<char*> free_ TENCACHE_GUARDED_BY(mutex_);  // the last one released is the next
};

}  // namespace tencache
