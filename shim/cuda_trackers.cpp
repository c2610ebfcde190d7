// SPDX-License-Identifier: Apache-2.0
#include "cuda_trackers.h"

#include <c10/util/ApproximateClock.h>

#include <utility>

#include "abi/tencache_gpu.h"

namespace tencache::shim {
namespace {

using Entry = c10::CachingDeviceAllocator::TraceEntry;

thread_local c10::MempoolId_t current_pool = {0, 0};

}  // namespace

SegmentTrackers::Scope::Scope(const c10::MempoolId_t& pool)
    : before_(std::exchange(current_pool, pool)) {}

SegmentTrackers::Scope::~Scope() { current_pool = before_; }

void SegmentTrackers::attach(Tracker tracker) {
  const std::lock_guard lock(mutex_);
  trackers_.push_back(std::move(tracker));
  is_empty_.store(false, std::memory_order_relaxed);
}

void SegmentTrackers::note_core_event(c10::DeviceIndex device, int event, uintptr_t address,
                                      uint64_t bytes) {
  if (is_empty_.load(std::memory_order_relaxed)) return;
  if (event == TENCACHE_FREE_COMPLETED || current_pool == c10::MempoolId_t{}) return;
  std::vector<Tracker> trackers;
  {
    const std::lock_guard lock(mutex_);
    trackers = trackers_;
  }
  const auto action = event == TENCACHE_SEGMENT_MADE ? Entry::SEGMENT_ALLOC : Entry::SEGMENT_FREE;
  const Entry entry(action, device, address, bytes, nullptr, current_pool,
                    c10::getApproximateTime());
  for (const Tracker& tracker : trackers) tracker(entry);
}

}  // namespace tencache::shim
