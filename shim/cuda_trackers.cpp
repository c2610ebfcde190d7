// SPDX-License-Identifier: Apache-2.0
#include "cuda_trackers.h"

#include <c10/util/ApproximateClock.h>

#include <utility>

#include "abi/tencache_gpu.h"

namespace tencache::shim {
namespace {

using Entry = c10::CachingDeviceAllocator::TraceEntry;

thread_local c10::MempoolId_t current_pool = {0, 0};
thread_local std::exception_ptr tracker_failure;

}  // namespace

SegmentTrackers::Scope::Scope(const c10::MempoolId_t& pool)
    : before_(std::exchange(current_pool, pool)) {}

SegmentTrackers::Scope::~Scope() { current_pool = before_; }

void SegmentTrackers::attach(Tracker tracker) {
  const std::lock_guard lock(mutex_);
  trackers_.push_back(std::move(tracker));
}

std::optional<c10::MempoolId_t> SegmentTrackers::note_pool(int event, uintptr_t address) {
  const std::lock_guard lock(mutex_);
  if (event == TENCACHE_SEGMENT_MADE) {
    pool_of_.emplace(address, current_pool);
    segment_count_.store(pool_of_.size(), std::memory_order_relaxed);
    return current_pool;
  }
  const auto gone = pool_of_.extract(address);
  if (gone.empty()) return std::nullopt;
  segment_count_.store(pool_of_.size(), std::memory_order_relaxed);
  return gone.mapped();
}

void SegmentTrackers::note_core_event(c10::DeviceIndex device, int event, uintptr_t address,
                                      uint64_t bytes) {
  if (event == TENCACHE_FREE_COMPLETED) return;
  const bool is_made = event == TENCACHE_SEGMENT_MADE;
  if (is_made && current_pool == c10::MempoolId_t{}) return;
  if (!is_made && segment_count_.load(std::memory_order_relaxed) == 0) return;
  // For memory that goes, the address tells the pool and the thread's Scope does not: common memory
  // may go while a thread makes room for a pool.
  const std::optional<c10::MempoolId_t> pool = note_pool(event, address);
  if (!pool) return;
  std::vector<Tracker> trackers;
  {
    const std::lock_guard lock(mutex_);
    trackers = trackers_;
  }
  const auto action = is_made ? Entry::SEGMENT_ALLOC : Entry::SEGMENT_FREE;
  const Entry entry(action, device, address, bytes, nullptr, *pool, c10::getApproximateTime());
  try {
    for (const Tracker& tracker : trackers) tracker(entry);
  } catch (...) {
    tracker_failure = std::current_exception();
  }
}

std::exception_ptr SegmentTrackers::take_failure() {
  return std::exchange(tracker_failure, nullptr);
}

}  // namespace tencache::shim
