// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/pinned_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/clock.h"
#include "base/units.h"

namespace tencache {

namespace {

// The first chunk is small: a program that pins a few bytes must not pay for many.
constexpr uint64_t kFirstChunkBytes = 2 * kMiB;

}  // namespace

uint64_t all_memory(const MachineMemory& memory) {
  return std::min(memory.total_bytes, memory.cgroup_limit_bytes.value_or(memory.total_bytes));
}

// ---- TimedPinner ---------------------------------------------------------------------------

Status TimedPinner::pin(void* memory, uint64_t bytes) {
  const uint64_t begin_ns = now_ns();
  Status pinned = pinner_.pin(memory, bytes);
  const uint64_t elapsed_ns = now_ns() - begin_ns;
  MutexLock lock(mutex_);
  const bool is_first = times_.longest_ns == 0;
  times_.shortest_ns = is_first ? elapsed_ns : std::min(times_.shortest_ns, elapsed_ns);
  times_.longest_ns = std::max(times_.longest_ns, elapsed_ns);
  times_.total_ns += elapsed_ns;
  ++times_.count_by_size[static_cast<size_t>(std::bit_width(bytes - 1)) % 64];
  return pinned;
}

PinTimes TimedPinner::times() const {
  MutexLock lock(mutex_);
  return times_;
}

void TimedPinner::reset_peaks() {
  MutexLock lock(mutex_);
  times_.longest_ns = times_.shortest_ns = 0;
}

void TimedPinner::reset_totals() {
  MutexLock lock(mutex_);
  times_.total_ns = 0;
  times_.count_by_size = {};
}

// ---- PinnedMemory --------------------------------------------------------------------------

namespace {

// Maps memory that forked children share. Such a child, like the writer of a checkpoint, may read
// the pinned tensors of the program.
Result<HostMemory> map_shared(HostMemoryRequest request) {
  request.is_shared = true;
  return HostMemory::map(request);
}

}  // namespace

Result<std::unique_ptr<PinnedMemory>> PinnedMemory::open(const DriverApi& driver,
                                                         PinnedMemoryConfig config) {
  std::unique_ptr<PinnedMemory> made(new PinnedMemory(driver));
  const Result<User*> user = made->user_of(config.ordinal);
  if (!user.is_ok()) return user.status();
  const Gpu& gpu = *user.value()->gpu;
  made->pinner_ = std::make_unique<CudaHostPinner>(driver, gpu.context());
  made->timed_pinner_ = std::make_unique<TimedPinner>(*made->pinner_);
  if (config.host.budget_bytes == 0) {
    config.host.budget_bytes = all_memory(probe_memory());
    config.host.remedy =
        "The budget is all memory of the machine or its container: allocate less, or raise the "
        "container's limit.";
  }
  config.host.node = gpu.facts().numa_node;
  config.host.first_chunk_bytes = kFirstChunkBytes;
  config.host.pinner = made->timed_pinner_.get();
  if (!config.host.memory_factory) config.host.memory_factory = &map_shared;
  TENCACHE_RETURN_IF_ERROR(HostTier::create(std::move(config.host)).move_to(&made->tier_));
  made->pool_ = std::make_unique<PinnedPool>(*made->tier_);
  return made;
}

// Members are destroyed last to first: the tier unpins in the context of a GPU of users_.
PinnedMemory::~PinnedMemory() = default;

Result<PinnedMemory::User*> PinnedMemory::user_of(int ordinal) {
  {
    MutexLock lock(mutex_);
    const auto found = users_.find(ordinal);
    if (found != users_.end()) return found->second.get();
  }
  Result<std::unique_ptr<Gpu>> gpu = Gpu::open(driver_, ordinal);
  if (!gpu.is_ok()) return gpu.status();
  auto user = std::make_unique<User>(std::move(gpu).value());
  MutexLock lock(mutex_);
  // Another thread may have been first. Then this user is destroyed after the lock is released.
  std::unique_ptr<User>& place = users_[ordinal];
  if (place == nullptr) place.swap(user);
  return place.get();
}

Result<bool> PinnedMemory::note_use(const void* address, int ordinal, CUstream stream) {
  if (!pool_->contains(address)) return false;
  const Result<User*> user = user_of(ordinal);
  if (!user.is_ok()) return user.status();
  return pool_->note_use(address, user.value()->streams, stream);
}

}  // namespace tencache
