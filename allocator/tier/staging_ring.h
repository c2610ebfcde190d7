// SPDX-License-Identifier: Apache-2.0
//
// StagingRing: a few small pinned buffers through which blocks of pageable host memory are copied
// to and from a device. A copy engine reads pinned memory only; for pageable memory the driver
// copies through a buffer of its own while the calling thread waits. With two buffers of ours the
// processor fills one while the device empties the other:
//
//   for each piece of the block:
//     buffer = try_acquire(); while there is none:
//       wait for the event of the oldest piece on its way, release() its buffer, try again
//     memcpy(buffer.memory, piece); queue the copy to the device; record an event behind it
//
// The memory is one pinned piece outside the budget of the host tier. No buffer crosses the end of
// the piece, so a copy from one buffer is within one registration. Where the piece cannot be
// pinned, the buffers are plain memory; is_pinned() and pin_refusal() tell that and why. Copies are
// then correct but slow.
//
// Invariant: a buffer is free or has one holder. Threads: any may acquire and release; mutex_ is
// held for bookkeeping only. A forked child has no buffers (Note [Fork] in platform/host_memory.h).
#pragma once

#include <sys/types.h>

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
  /// Size of one buffer. 8 MiB take some 150 us at 50 GB/s, many times the cost of starting a copy.
  uint64_t buffer_bytes = 8 * kMiB;  // rounded up to whole pages
  unsigned buffer_count = 2;
  int node = -1;                 // NUMA node; -1 = any
  HostPinner* pinner = nullptr;  // outlives the ring; null = plain memory
};

/// One buffer of a ring, aligned to a page. The struct is trivially copyable, and its holder owns
/// the buffer.
struct StagingBuffer {
  char* memory = nullptr;
  uint64_t bytes = 0;
};

class StagingRing {
 public:
  /// Returns kOutOfMemory where there is not even plain memory.
  static Result<std::unique_ptr<StagingRing>> create(const StagingRingConfig& config);
  /// REQUIRES: every buffer was released.
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  /// Returns a free buffer. If there is none, waits for another thread to release one. A thread
  /// that holds all of them would wait for itself.
  StagingBuffer acquire() TENCACHE_EXCLUDES(mutex_);
  /// Returns a free buffer, or nullopt when none is free now.
  std::optional<StagingBuffer> try_acquire() TENCACHE_EXCLUDES(mutex_);
  /// Gives a buffer back. REQUIRES: the device has finished with the buffer.
  void release(const StagingBuffer& buffer) TENCACHE_EXCLUDES(mutex_);

  bool is_pinned() const { return pin_refusal_.empty(); }
  /// Why the buffers are not pinned. The text is empty when they are.
  const std::string& pin_refusal() const { return pin_refusal_; }
  uint64_t buffer_bytes() const { return config_.buffer_bytes; }

 private:
  StagingRing(HostMemory memory, const StagingRingConfig& config, std::string pin_refusal);
  StagingBuffer take_free() TENCACHE_REQUIRES(mutex_);

  // Members that are constant after construction.
  const HostMemory memory_;
  const StagingRingConfig config_;
  const std::string pin_refusal_;
  const pid_t owner_pid_;

  Mutex mutex_;
  CondVar released_;
  std::vector<char*> free_ TENCACHE_GUARDED_BY(mutex_);  // the last one released is the next
};

}  // namespace tencache
