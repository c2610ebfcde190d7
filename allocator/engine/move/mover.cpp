// SPDX-License-Identifier: Apache-2.0
#include "engine/move/mover.h"

#include <vector>

#include "base/check.h"

namespace tencache {

void ForkLatch::enter() {
  MutexLock lock(mutex_);
  while (is_closed_) changed_.wait(mutex_);
  ++permit_count_;
}

void ForkLatch::leave() {
  MutexLock lock(mutex_);
  TENCACHE_DCHECK(permit_count_ > 0);
  if (--permit_count_ == 0) changed_.notify_all();
}

void ForkLatch::close() {
  MutexLock lock(mutex_);
  while (is_closed_) changed_.wait(mutex_);  // another thread forks
  is_closed_ = true;
  while (permit_count_ > 0) changed_.wait(mutex_);
}

void ForkLatch::reopen() {
  MutexLock lock(mutex_);
  is_closed_ = false;
  changed_.notify_all();
}

TENCACHE_SLOW void Mover::count_early(Extent* extent) {
  if (!extent->take_ahead()) return;
  add(stats_.early_fetches, 1);
  add(stats_.early_fetched_bytes, extent->bytes);
}

void Mover::note_late(Extent* extent, LateFetches* late) {
  if (!extent->take_ahead()) return;
  ++late->count;
  late->bytes += extent->bytes;
}

void Mover::wait_while_sealing(const Extent& extent) {
  for (uint64_t word = extent.load(); Extent::state_of(word) == ExtentState::kSealing;
       word = extent.load()) {
    extent.wait_while(word);
  }
}

void Mover::evict_requested(std::span<const MoveRequest> requests, const OnEvicted& on_evicted) {
  std::vector<Extent*> part;
  uint64_t part_bytes = 0;
  for (const MoveRequest& request : requests) {
    if (request.is_current() && !request.is_outdated()) {
      part.push_back(request.extent);
      part_bytes += request.bytes;
    }
    if (part_bytes < bytes_at_once() && &request != &requests.back()) continue;
    on_evicted(evict(part));
    part.clear();
    part_bytes = 0;
  }
}

}  // namespace tencache
