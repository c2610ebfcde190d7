// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/upcoming_uses.h"

#include <algorithm>

#include "base/clock.h"
#include "engine/plan/prefetcher.h"
#include "memory/heap.h"

namespace tencache {
namespace {

// This share of the budget is filled ahead: about what one chunk of a list op names.
constexpr uint64_t kExpectedShare = 16;

}  // namespace

void UpcomingUses::expect(std::span<Extent* const> extents) {
  MutexLock lock(mutex_);
  if (extents.empty() && owner_ != std::this_thread::get_id()) return;
  clear();
  owner_ = std::this_thread::get_id();
  uses_.reserve(extents.size());
  for (Extent* extent : extents) {
    if (!places_.try_emplace(extent, uses_.size()).second) continue;  // its first use counts
    uses_.push_back({noted(extent), false});
  }
  is_active_.store(!uses_.empty(), std::memory_order_relaxed);
}

void UpcomingUses::clear() {
  is_active_.store(false, std::memory_order_relaxed);
  uses_.clear();
  places_.clear();
  position_ = 0;
}

void UpcomingUses::on_tick(std::span<Extent* const> extents, bool is_foreseen) {
  std::vector<MoveRequest> requests;
  {
    MutexLock lock(mutex_);
    for (const Extent* extent : extents) {
      const auto place = places_.find(extent);
      if (place != places_.end()) position_ = std::max(position_, place->second + 1);
    }
    if (position_ == uses_.size()) return clear();
    if (!is_foreseen) requests = next_requests();
  }
  if (!requests.empty()) parts_.prefetcher->request(requests);
}

std::vector<MoveRequest> UpcomingUses::next_requests() {
  const uint64_t ahead_max = parts_.heap->budget().limit() / kExpectedShare;
  const uint64_t now = timestamp();
  uint64_t ahead_bytes = 0;
  std::vector<MoveRequest> requests;
  for (size_t place = position_; place < uses_.size() && ahead_bytes < ahead_max; ++place) {
    Use& use = uses_[place];
    if (!use.is_requested) {
      if (Extent::usable_in(use.extent->state())) continue;
      use.is_requested = true;
      requests.push_back({use.extent, use.id, use.bytes, now});
    }
    ahead_bytes += use.bytes;
  }
  return requests;
}

uint64_t UpcomingUses::missing_bytes() const {
  if (!is_active()) return 0;
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (size_t place = position_; place < uses_.size(); ++place) {
    const Use& use = uses_[place];
    if (use.is_requested && use.extent->state() == ExtentState::kCold) bytes += use.bytes;
  }
  return bytes;
}

std::unordered_map<const Extent*, uint64_t> UpcomingUses::next_uses() const {
  std::unordered_map<const Extent*, uint64_t> uses;
  if (!is_active()) return uses;
  MutexLock lock(mutex_);
  for (size_t place = position_; place < uses_.size(); ++place) {
    const Use& use = uses_[place];
    if (use.is_current()) uses[use.extent] = place - position_;
  }
  return uses;
}

}  // namespace tencache
