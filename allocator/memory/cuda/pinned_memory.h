// SPDX-License-Identifier: Apache-2.0
//
// PinnedMemory: a PinnedPool and what it stands on, for one process: the GPU near which the memory
// lies, the pinner, the host tier, and the streams of every GPU that uses the memory. It needs no
// engine of any GPU. The memory is pinned for all contexts, so it serves every GPU.
//
// By default its budget is all memory, as with PyTorch's own allocator: a program that asks for
// pinned memory cannot do without it. The tier maps memory when it is needed, and refuses only what
// the machine does not have left at that moment.
//
// Threads: create and destroy on one thread; any thread calls the rest. mutex_ is held only for
// bookkeeping; a GPU is opened without it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "base/status.h"
#include "memory/cuda/pinned_pool.h"
#include "platform/cuda/gpu.h"
#include "platform/cuda/host_pinner.h"
#include "platform/cuda/stream_mark.h"
#include "platform/cuda/stream_numbers.h"
#include "platform/machine.h"
#include "tier/host_tier.h"

namespace tencache {

struct PinnedMemoryConfig {
  int ordinal = 0;  // of the GPU near which the memory lies
  // A budget of 0 means all memory. PinnedMemory sets the node and the pinner.
  HostTierConfig host;
};

/// The memory of the machine or its container, in use or not.
uint64_t all_memory(const MachineMemory& memory);

/// How long it took to pin chunks for the pool; those that the driver refused to pin count, too.
struct PinTimes {
  uint64_t total_ns = 0;
  uint64_t longest_ns = 0;
  uint64_t shortest_ns = 0;
  std::array<uint64_t, 64> count_by_size = {};  // [n]: chunks of 2^(n-1) < bytes <= 2^n
};

/// A pinner that passes calls on to another, and keeps how long those of pin() took. Threads: any.
class TimedPinner final : public HostPinner {
 public:
  explicit TimedPinner(HostPinner& pinner) : pinner_(pinner) {}
  Status pin(void* memory, uint64_t bytes) override TENCACHE_EXCLUDES(mutex_);
  void unpin(void* memory, uint64_t bytes) override { pinner_.unpin(memory, bytes); }
  PinTimes times() const TENCACHE_EXCLUDES(mutex_);
  /// Resets the longest and shortest times.
  void reset_peaks() TENCACHE_EXCLUDES(mutex_);
  /// Resets all the rest.
  void reset_totals() TENCACHE_EXCLUDES(mutex_);

 private:
  HostPinner& pinner_;
  mutable Mutex mutex_;
  PinTimes times_ TENCACHE_GUARDED_BY(mutex_);
};

class PinnedMemory {
 public:
  /// `driver` outlives the object. Fails where the GPU cannot be opened, or as HostTier::create()
  /// does. Maps no memory yet.
  static Result<std::unique_ptr<PinnedMemory>> open(const DriverApi& driver,
                                                    PinnedMemoryConfig config);
  /// REQUIRES: every block was freed. Waits for the streams that still use what was freed.
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  PinnedPool& pool() { return *pool_; }
  HostTier& tier() { return *tier_; }
  TimedPinner& pinner() { return *timed_pinner_; }

  /// Notes that a stream of that GPU uses the block that contains the address. Returns false when
  /// there is no such block. Fails where the GPU cannot be opened; that must not be ignored.
  Result<bool> note_use(const void* address, int ordinal, CUstream stream)
      TENCACHE_EXCLUDES(mutex_);

 private:
  // A GPU whose streams use the memory. Members are destroyed last to first.
  struct User {
    explicit User(std::unique_ptr<Gpu> opened)
        : gpu(std::move(opened)), marks(*gpu), streams(*gpu, marks) {}
    std::unique_ptr<Gpu> gpu;
    StreamMarks marks;
    StreamNumbers streams;
  };

  explicit PinnedMemory(const DriverApi& driver) : driver_(driver) {}
  Result<User*> user_of(int ordinal) TENCACHE_EXCLUDES(mutex_);

  const DriverApi& driver_;
  mutable Mutex mutex_;
  // The users by the ordinal of their GPU. No entry is removed while this object lives.
  std::map<int, std::unique_ptr<User>> users_ TENCACHE_GUARDED_BY(mutex_);
  std::unique_ptr<CudaHostPinner> pinner_;
  std::unique_ptr<TimedPinner> timed_pinner_;
  std::unique_ptr<HostTier> tier_;
  std::unique_ptr<PinnedPool> pool_;
};

}  // namespace tencache
