// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/neighbours.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "engine/plan/evictor.h"
#include "engine/plan/prefetcher.h"
#include "memory/heap.h"

namespace tencache {
namespace {

// This many extents in one direction make a row.
constexpr uint32_t kLengthMin = 3;
// Neighbours are at most this many places apart: those between them may be there already, and need
// not be fetched.
constexpr ptrdiff_t kNear = 8;
// Each row is fetched ahead by this share of the budget, or by one extent.
constexpr uint64_t kRowShare = 32;
// A row is over when others have gone on this often since it last did.
constexpr uint64_t kUsesMax = 32;
// Listing all extents takes time in proportion to them. So that is done again only after more waits
// than this part of the listed extents, and only for an extent that is not listed.
constexpr uint64_t kListPart = 64;

bool is_cold(const Extent& extent, uint64_t id) {
  return extent.id == id && extent.state() == ExtentState::kCold;
}

}  // namespace

void Neighbours::on_late(std::span<Extent* const> extents) {
  if (extents.empty()) return;
  if (is_list_old(extents)) list_extents();
  std::vector<MoveRequest> guesses;
  {
    MutexLock lock(mutex_);
    for (const Extent* extent : extents) {
      const uint64_t id = extent->id;
      if (!is_known(id) || go_on(id) != nullptr) continue;
      Row& oldest = *std::ranges::min_element(rows_, {}, &Row::used_at);
      oldest = {id, id, id, 0, 1, ++uses_};
    }
    guesses = next_guesses();
  }
  guess(std::move(guesses));
}

// A guess of all rows takes time in proportion to what is ahead, so it is not made anew for each
// extent.
void Neighbours::on_early(const Extent* extent) {
  std::vector<MoveRequest> guesses;
  {
    MutexLock lock(mutex_);
    const Row* row = go_on(extent->id);
    if (row == nullptr || !row->is_past_half()) return;
    guesses = next_guesses();
  }
  guess(std::move(guesses));
}

void Neighbours::clear() {
  {
    MutexLock lock(mutex_);
    rows_ = {};
    is_active_.store(false, std::memory_order_relaxed);
  }
  guess({});
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
  std::vector<NotedExtent> known;
  for (const ListedExtent& listed : parts_.heap->extents()) {
    if (!listed.extent->is_slab) known.push_back({listed.extent, listed.extent->id, listed.bytes});
  }
  std::ranges::sort(known, {}, &NotedExtent::id);
  MutexLock lock(mutex_);
  known_.swap(known);
  late_since_listed_ = 0;
}

ptrdiff_t Neighbours::place_of(uint64_t id) const {
  return std::ranges::lower_bound(known_, id, {}, &NotedExtent::id) - known_.begin();
}

bool Neighbours::is_known(uint64_t id) const {
  const auto place = static_cast<size_t>(place_of(id));
  return place < known_.size() && known_[place].id == id;
}

// Whether the extent is the row's next one, or one of those that were guessed.
bool Neighbours::continues(const Row& row, uint64_t id) const {
  if (row.length == 0) return false;
  const ptrdiff_t last = place_of(row.last_id);
  const ptrdiff_t distance = place_of(id) - last;
  if (row.direction == 0) return std::abs(distance) <= kNear;
  const ptrdiff_t ahead = std::abs(place_of(row.ahead_id) - last);
  return distance * row.direction >= 0 && std::abs(distance) <= std::max(kNear, ahead);
}

// Returns the row that goes on with this extent. Returns null when none does.
const Neighbours::Row* Neighbours::go_on(uint64_t id) {
  for (Row& row : rows_) {
    if (!continues(row, id)) continue;
    if (id == row.last_id) return &row;
    row.direction = id > row.last_id ? 1 : -1;
    row.last_id = id;
    ++row.length;
    row.used_at = ++uses_;
    return &row;
  }
  return nullptr;
}

// Appends what is cold from the row's last extent on, the nearest first.
void Neighbours::append_guesses(Row* row, std::vector<MoveRequest>* guesses) const {
  row->ahead_id = row->half_id = row->last_id;
  if (row->length < kLengthMin) return;
  const uint64_t ahead_max = parts_.heap->budget().limit() / kRowShare;
  const auto end = static_cast<ptrdiff_t>(known_.size());
  const uint64_t now = timestamp();
  uint64_t ahead_bytes = 0;
  ptrdiff_t passed = 0;
  ptrdiff_t place = place_of(row->last_id) + row->direction;
  for (; place >= 0 && place < end && passed < kNear && ahead_bytes < ahead_max;
       place += row->direction) {
    const NotedExtent& known = known_[static_cast<size_t>(place)];
    const bool is_missing = is_cold(*known.extent, known.id);
    const bool is_ahead = known.is_current() && known.extent->has(kFlagAhead);
    passed = is_missing || is_ahead ? 0 : passed + 1;
    if (passed > 0) continue;
    if (is_missing) guesses->push_back({known.extent, known.id, known.bytes, now});
    row->ahead_id = known.id;
    if (ahead_bytes < ahead_max / 2) row->half_id = known.id;
    ahead_bytes += known.bytes;
  }
}

// Guesses of the row that went on last come first.
std::vector<MoveRequest> Neighbours::next_guesses() {
  std::ranges::sort(rows_, std::ranges::greater{}, &Row::used_at);
  std::vector<MoveRequest> guesses;
  bool is_any_ahead = false;
  for (Row& row : rows_) {
    if (uses_ - row.used_at >= kUsesMax) row = {};
    append_guesses(&row, &guesses);
    is_any_ahead |= row.ahead_id != row.last_id;
  }
  is_active_.store(is_any_ahead, std::memory_order_relaxed);
  return guesses;
}

// Passes make room, but perhaps nothing calls for one while the program neither waits nor
// allocates. So this does.
void Neighbours::guess(std::vector<MoveRequest> guesses) const {
  const bool is_any = !guesses.empty();
  parts_.prefetcher->guess(std::move(guesses));
  if (is_any) parts_.evictor->on_attention();
}

}  // namespace tencache
