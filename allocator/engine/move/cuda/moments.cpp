// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cuda/moments.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "memory/cuda/cuda_extent.h"

namespace tencache {
namespace {

// How many moments are remembered. The oldest of them covers all older uses on its streams.
constexpr size_t kMomentsMax = 64;

}  // namespace

MomentPtr Moments::mark_users(std::span<const MoveRequest> requests) {
  const auto moment = std::make_shared<Moment>();
  moment->at = timestamp();
  for (const MoveRequest& request : requests) {
    moment->at = std::min(moment->at, request.given_at);
    moment->streams |= users_of(*request.extent);
  }
  if (!numbers_.mark_all(moment->streams, &moment->marks).is_ok()) return nullptr;
  MomentPtr oldest;  // goes when the lock is free
  MutexLock lock(mutex_);
  moments_.push_back(moment);
  if (moments_.size() > kMomentsMax) {
    oldest = std::move(moments_.front());
    moments_.pop_front();
  }
  return moment;
}

// Only uses before the claim matter here: a thread that uses the extent later calls the eviction
// off.
MomentPtr Moments::after_uses(const MoveRequest& request) {
  const auto& extent = static_cast<const CudaExtent&>(*request.extent);
  if (extent.is_recorded.load(std::memory_order_relaxed)) return nullptr;
  const StreamSet users = users_of(extent);
  MomentPtr requested = std::static_pointer_cast<const Moment>(request.queued);
  if (requested != nullptr && !requested->covers(extent, users)) requested = nullptr;
  MutexLock lock(mutex_);
  for (const MomentPtr& moment : moments_) {
    if (requested != nullptr && requested->at <= moment->at) break;
    if (moment->covers(extent, users)) return moment;
  }
  return requested;
}

}  // namespace tencache
