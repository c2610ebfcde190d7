// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/neighbours.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/clock.h"
#include "engine/plan/evictor.h"
#include "engine/plan/prefetcher.h"
#include "memory/heap.h"

namespace tencache {
namespace {

// So many in one direction are a row.
constexpr uint32_t kLengthMin = 3;
// Neighbours may have so many others between them: those that are there need not be fetched.
constexpr ptrdiff_t kNear = 8;
// Each row is so much of the budget ahead, or one extent.
constexpr uint64_t kAheadShare = 32;
// Listing all extents takes time in proportion to them. So it is done again only after this part of
// them was late.
constexpr uint64_t kListPart = 64;

bool is_cold(const Extent& extent, uint64_t id) {
  return extent.id == id && extent.state() == ExtentState::kCold;
}

}  // namespace

void Neighbours::on_late(std::span<Extent* const> extents) {
  if (extents.empty()) return;
  if (is_list_old(extents)) list_extents();
  std::vector<MoveRequest> requests;
  {
    MutexLock lock(mutex_);
    for (const Extent* extent : extents) {
      const uint64_t id = extent->id;
      if (!is_known(id) || go_on(id)) continue;
      Row& oldest = *std::ranges::min_element(rows_, {}, &Row::used_at);
      oldest = {id, id, 0, 1, ++uses_};
    }
    requests = next_requests();
  }
  request(requests);
}

void Neighbours::on_early(const Extent* extent) {
  std::vector<MoveRequest> requests;
  {
    MutexLock lock(mutex_);
    if (!go_on(extent->id)) return;
    requests = next_requests();
  }
  request(requests);
}

void Neighbours::clear() {
  MutexLock lock(mutex_);
  rows_ = {};
  is_active_.store(false, std::memory_order_relaxed);
}

bool Neighbours::is_list_old(std::span<Extent* const> extents) {
  MutexLock lock(mutex_);
  ++late_since_listed_;
  if (late_since_listed_ <= known_.size() / kListPart) return false;
  for (const Extent* extent : extents) {
    if (!is_known(extent->id)) return true;
  }
  return false;
}

void Neighbours::list_extents() {
  std::vector<Known> known;
  for (const ListedExtent& listed : parts_.heap->extents()) {
    if (!listed.extent->is_slab) known.push_back({listed.extent->id, listed.extent, listed.bytes});
  }
  std::ranges::sort(known, {}, &Known::id);
  MutexLock lock(mutex_);
  known_.swap(known);
  late_since_listed_ = 0;
}

ptrdiff_t Neighbours::place_of(uint64_t id) const {
  return std::ranges::lower_bound(known_, id, {}, &Known::id) - known_.begin();
}

bool Neighbours::is_known(uint64_t id) const {
  const auto place = static_cast<size_t>(place_of(id));
  return place < known_.size() && known_[place].id == id;
}

// Whether the extent is the row's next one, or one of those that were requested.
bool Neighbours::continues(const Row& row, uint64_t id) const {
  if (row.length == 0) return false;
  const ptrdiff_t last = place_of(row.last_id);
  const ptrdiff_t distance = place_of(id) - last;
  if (row.direction == 0) return std::abs(distance) <= kNear;
  const ptrdiff_t requested = std::abs(place_of(row.requested_id) - last);
  return distance * row.direction >= 0 && std::abs(distance) <= std::max(kNear, requested);
}

// Returns false when no row goes on with this extent.
bool Neighbours::go_on(uint64_t id) {
  for (Row& row : rows_) {
    if (!continues(row, id)) continue;
    if (id == row.last_id) return true;
    row.direction = id > row.last_id ? 1 : -1;
    const bool is_passed = (id > row.requested_id) == (row.direction > 0);
    row.last_id = id;
    if (is_passed) row.requested_id = id;
    ++row.length;
    row.used_at = ++uses_;
    return true;
  }
  return false;
}

void Neighbours::append_requests(Row* row, std::vector<MoveRequest>* requests) const {
  if (row->length < kLengthMin) return;
  const uint64_t ahead_max = parts_.heap->budget().limit() / kAheadShare;
  const auto end = static_cast<ptrdiff_t>(known_.size());
  const ptrdiff_t requested = place_of(row->requested_id);
  const uint64_t now = timestamp();
  uint64_t ahead_bytes = 0;
  ptrdiff_t passed = 0;
  ptrdiff_t place = place_of(row->last_id) + row->direction;
  for (; place >= 0 && place < end && passed < kNear && ahead_bytes < ahead_max;
       place += row->direction) {
    const Known& known = known_[static_cast<size_t>(place)];
    const bool is_needed = is_cold(*known.extent, known.id);
    if ((requested - place) * row->direction >= 0) {
      const bool is_ahead = known.extent->id == known.id && known.extent->has(kFlagAhead);
      if (is_needed || is_ahead) ahead_bytes += known.bytes;
      continue;
    }
    passed = is_needed ? 0 : passed + 1;
    if (!is_needed) continue;
    requests->push_back({known.extent, known.id, known.bytes, now});
    row->requested_id = known.id;
    ahead_bytes += known.bytes;
  }
}

std::vector<MoveRequest> Neighbours::next_requests() {
  std::vector<MoveRequest> requests;
  bool is_any_ahead = false;
  for (Row& row : rows_) {
    append_requests(&row, &requests);
    is_any_ahead |= row.requested_id != row.last_id;
  }
  is_active_.store(is_any_ahead, std::memory_order_relaxed);
  return requests;
}

// Room is made by passes, which the program causes only while it waits or allocates.
void Neighbours::request(std::span<const MoveRequest> requests) {
  if (requests.empty()) return;
  parts_.prefetcher->request(requests);
  parts_.evictor->on_attention();
}

uint64_t Neighbours::missing_bytes() const {
  if (!is_active()) return 0;
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const Row& row : rows_) {
    if (row.requested_id == row.last_id) continue;
    const ptrdiff_t requested = place_of(row.requested_id);
    for (ptrdiff_t place = place_of(row.last_id); place != requested;) {
      place += row.direction;
      const auto known = known_.begin() + place;
      if (known < known_.end() && is_cold(*known->extent, known->id)) bytes += known->bytes;
    }
  }
  return bytes;
}

}  // namespace tencache
