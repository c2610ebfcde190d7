// SPDX-License-Identifier: Apache-2.0
#include "learn/extent_roles.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "learn/alignment.h"

namespace tencache {
namespace {

/// Where as many entries differ on one side as on the other between two that correspond, those
/// entries correspond, too: their ops name one extent more or one fewer.
void match_between(std::vector<size_t>* counterparts) {
  size_t matched = kUnmatched;  // the last one
  for (size_t index = 0; index < counterparts->size(); ++index) {
    const size_t counterpart = (*counterparts)[index];
    if (counterpart == kUnmatched) continue;
    if (matched != kUnmatched && counterpart - (*counterparts)[matched] == index - matched) {
      for (size_t between = matched + 1; between < index; ++between) {
        (*counterparts)[between] = (*counterparts)[between - 1] + 1;
      }
    }
    matched = index;
  }
}

}  // namespace

ExtentRoles::ExtentRoles(const TickLog& log, const PeriodPlace& place) : log_(log), place_(place) {
  compare_with_before();
  sort_out_births();
  if (!is_consistent_) return;
  pair_by_place();
  pair_by_size();
  settle_open();
  look_before_the_copy();
  find_exchanged();
}

// Looks back one and a half copies, because the copy before may have ticks that this one lacks.
void ExtentRoles::compare_with_before() {
  counterparts_.assign(place_.length, kUnknownTick);
  const uint64_t known = place_.begin - log_.begin();
  const uint64_t begin = place_.begin - std::min(known, place_.length + place_.length / 2);
  // An extent that was allocated in the repetition before those ticks is another one in each
  // repetition.
  const uint64_t since = begin - std::min(begin, place_.length);
  std::vector<size_t> aligned = align_ends(log_.identities(begin, place_.begin, since),
                                           log_.identities(place_.begin, place_.end(), since));
  match_between(&aligned);
  for (size_t index = 0; index < aligned.size(); ++index) {
    if (aligned[index] == kUnmatched) continue;
    counterparts_[index] = begin + aligned[index];
    copy_tick_of_[begin + aligned[index]] = place_.begin + index;
  }
}

void ExtentRoles::sort_out_births() {
  for (uint64_t number = place_.begin; number < place_.end(); ++number) {
    for (const uint64_t extent_id : log_.births(number)) {
      const ExtentLife* life = log_.life(extent_id);
      if (life == nullptr) {
        is_consistent_ = false;
        return;
      }
      const bool is_freed = life->freed != kUnknownTick && life->freed < place_.end();
      if (!is_freed) open_[extent_id] = successions_.size();
      successions_.push_back(
          {extent_id, 0, life->bytes, number, life->freed, Succession::End::kInCopy});
    }
    for (const LoggedAccess& access : log_.tick(number).accesses) {
      last_uses_[access.extent_id] = number;
    }
  }
}

void ExtentRoles::pair(Succession* open, uint64_t predecessor) {
  open->predecessor = predecessor;
  open->end = Succession::End::kInNextCopy;
  open->freed = log_.life(predecessor)->freed;
  paired_.insert(predecessor);
  open_.erase(open->extent_id);
}

uint64_t ExtentRoles::freed_in_copy(uint64_t extent_id) const {
  const ExtentLife* life = log_.life(extent_id);
  if (life == nullptr || life->freed == kUnknownTick || !is_within(life->freed)) {
    return kUnknownTick;
  }
  return life->freed;
}

// The extent that was allocated in tick `number` and corresponds to the one of `life`: one of the
// same size, at the same place if possible, or else the one at the same place.
std::optional<uint64_t> ExtentRoles::birth_like(const ExtentLife& life, uint64_t number) const {
  std::optional<uint64_t> same_place;
  std::optional<uint64_t> same_size;
  const std::span<const uint64_t> births = log_.births(number);
  for (size_t ordinal = 0; ordinal < births.size(); ++ordinal) {
    const ExtentLife* other = log_.life(births[ordinal]);
    if (other == nullptr) continue;
    const bool has_size = other->bytes == life.bytes;
    if (has_size && ordinal == life.ordinal) return births[ordinal];
    if (has_size && !same_size) same_size = births[ordinal];
    if (ordinal == life.ordinal) same_place = births[ordinal];
  }
  return same_size ? same_size : same_place;
}

// An extent that was allocated at a place of the ticks before and freed in the copy has its
// successor at the same place of the copy.
void ExtentRoles::pair_by_place() {
  for (uint64_t number = place_.begin; number < place_.end(); ++number) {
    for (const uint64_t extent_id : log_.deaths(number)) {
      const ExtentLife* life = log_.life(extent_id);
      if (life == nullptr || life->born == kUnknownTick || life->born >= place_.begin) continue;
      const auto place = copy_tick_of_.find(life->born);
      if (place == copy_tick_of_.end()) continue;
      const std::optional<uint64_t> successor = birth_like(*life, place->second);
      const auto open = successor ? open_.find(*successor) : open_.end();
      if (open != open_.end()) pair(&successions_[open->second], extent_id);
    }
  }
}

// Extents that were allocated before anything was recorded, or where nothing corresponds to the
// copy, are still known by their numbers, which grow. The last of one size that live on succeed the
// last of that size that were freed.
void ExtentRoles::pair_by_size() {
  std::map<uint64_t, std::set<uint64_t, std::greater<>>> freed;  // by bytes, the newest first
  for (uint64_t number = place_.begin; number < place_.end(); ++number) {
    for (const LoggedAccess& access : log_.tick(number).accesses) {
      const ExtentLife* life = log_.life(access.extent_id);
      if (life == nullptr || paired_.contains(access.extent_id)) continue;
      if (is_within(life->born) || copy_tick_of_.contains(life->born)) continue;
      if (freed_in_copy(access.extent_id) == kUnknownTick) continue;
      freed[life->bytes].insert(access.extent_id);
    }
  }
  std::map<uint64_t, std::vector<Succession*>> open;  // by bytes, in the order of allocation
  for (Succession& born : successions_) {
    if (open_.contains(born.extent_id)) open[born.bytes].push_back(&born);
  }
  for (const auto& [bytes, predecessors] : freed) {
    std::vector<Succession*>& successors = open[bytes];
    for (const uint64_t last : predecessors) {
      if (successors.empty()) break;
      pair(successors.back(), last);
      successors.pop_back();
    }
  }
}

void ExtentRoles::settle_open() {
  for (Succession& born : successions_) {
    if (open_.contains(born.extent_id)) settle(&born);
  }
  std::erase_if(successions_,
                [this](const Succession& born) { return made_once_.contains(born.extent_id); });
}

// The extent at the same place of the ticks before the copy shows how long such an extent lives.
// The ticks after the copy, where there are any, show the end of the extent itself.
void ExtentRoles::settle(Succession* open) {
  const ExtentLife& life = *log_.life(open->extent_id);
  const uint64_t before = counterpart(open->born);
  const std::optional<uint64_t> earlier =
      before != kUnknownTick ? birth_like(life, before) : std::nullopt;
  open->end = Succession::End::kLasts;
  if (earlier) {
    const ExtentLife& earlier_life = *log_.life(*earlier);
    if (earlier_life.freed == kUnknownTick || earlier_life.freed >= place_.begin) return;
    const auto end = copy_tick_of_.find(earlier_life.freed);
    const uint64_t lasted = earlier_life.freed - earlier_life.born;
    open->freed =
        end != copy_tick_of_.end() ? end->second : std::min(open->born + lasted, place_.end() - 1);
    const auto last_use = last_uses_.find(open->extent_id);
    const uint64_t used_until = last_use != last_uses_.end() ? last_use->second : open->born;
    // If this extent is used after that end, the earlier one was something else.
    if (open->freed >= used_until) {
      open->end = Succession::End::kInCopy;
      return;
    }
  }
  if (life.freed == kUnknownTick) {
    made_once_.insert(open->extent_id);
  } else if (life.freed - place_.end() < open->born - place_.begin) {
    open->end = Succession::End::kInNextCopy;
    open->freed = life.freed - place_.length;
  }
}

// An allocation right after a mark belongs to the tick before the mark. If the copy frees the
// extent, each repetition has its own. If not, it was made once, and is noted as such here.
void ExtentRoles::look_before_the_copy() {
  for (const uint64_t extent_id : log_.births(place_.begin - 1)) {
    const ExtentLife* life = log_.life(extent_id);
    if (life == nullptr || freed_in_copy(extent_id) != kUnknownTick) continue;
    made_once_.insert(extent_id);
  }
}

// Finds the extents that the copy before did not name at their place: these come and go more slowly
// than once a repetition.
void ExtentRoles::find_exchanged() {
  for (uint64_t number = place_.begin; number < place_.end(); ++number) {
    const uint64_t before = counterpart(number);
    if (before == kUnknownTick) continue;
    if (log_.tick(before).digest != log_.tick(number).digest) continue;
    const std::vector<LoggedAccess>& accesses = log_.tick(number).accesses;
    const std::vector<LoggedAccess>& earlier = log_.tick(before).accesses;
    for (size_t index = 0; index < accesses.size(); ++index) {
      const uint64_t extent_id = accesses[index].extent_id;
      if (extent_id == earlier[index].extent_id) continue;
      if (!log_.is_older(extent_id, place_.begin)) continue;
      if (freed_in_copy(extent_id) == kUnknownTick) exchanged_.insert(extent_id);
    }
  }
}

}  // namespace tencache
