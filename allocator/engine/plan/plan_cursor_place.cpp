// SPDX-License-Identifier: Apache-2.0
//
// The part of PlanCursor that finds out where in which plan the program is.
#include <algorithm>
#include <tuple>

#include "engine/plan/plan_cursor.h"
#include "learn/tick_digest.h"

namespace tencache {
namespace {

// Several places of a plan must have fitted this many ticks that name extents which are always
// there. Then they are the same place of a loop.
constexpr uint32_t kLoopTicksMin = 6;
// At most this many places are kept for a gram; to check more would cost more than it tells.
constexpr size_t kPlacesMax = 1024;

}  // namespace

uint64_t PlanCursor::gram() const {
  uint64_t value = 0;
  for (uint64_t age = kGram; age > 0; --age) {
    value = TickDigest::mix(value ^ history_[(history_count_ - age) % kGram]);
  }
  return value;
}

PlanCursor::Places PlanCursor::index_places(const std::vector<LearnedKind>& kinds) {
  Places found;
  for (uint32_t index = 0; index < kinds.size(); ++index) {
    const std::vector<uint64_t>& digests = kinds[index].period().digests;
    for (size_t tick = 0; tick < digests.size(); ++tick) {
      uint64_t value = 0;
      for (size_t age = kGram; age > 0; --age) {
        const size_t back = (age - 1) % digests.size();
        value = TickDigest::mix(value ^ digests[(tick + digests.size() - back) % digests.size()]);
      }
      std::vector<Place>& places = found[value];
      if (places.size() < kPlacesMax) places.push_back({index, static_cast<Tick>(tick)});
    }
  }
  return found;
}

// The places that the last ticks fit.
std::vector<PlanCursor::Place> PlanCursor::places_of(uint64_t digest,
                                                     std::span<Extent* const> extents,
                                                     Unknown unknown) const {
  std::vector<Place> fitting;
  if (history_count_ < kGram) return fitting;
  const auto found = places_.find(gram());
  if (found == places_.end()) return fitting;
  for (const Place& place : found->second) {
    const BoundPlan& bound_plan = bound_plans_[place.bound_plan];
    if (!agrees(bound_plan, place.tick, digest, extents, unknown)) continue;
    const bool is_other = &bound_plan != current_;
    if (is_other && bound_plan.roles && !bound_plan.roles->fits_seen(place.tick)) continue;
    fitting.push_back(place);
  }
  return fitting;
}

// The only place that the last ticks fit. Returns nullopt when there is none or several.
std::optional<PlanCursor::Place> PlanCursor::place_of(uint64_t digest,
                                                      std::span<Extent* const> extents) const {
  const std::vector<Place> places = places_of(digest, extents);
  return places.size() == 1 ? std::optional(places.front()) : std::nullopt;
}

// The only place that fits if extents that are not known may be those of a stored period. Returns
// nullopt where a place in a plan of this run fits, too. While no extent is known, layers that look
// alike make several places fit. Then the program is at the period's beginning, if it has just
// begun or did something else before.
std::optional<PlanCursor::Place> PlanCursor::stored_place_of(
    uint64_t digest, std::span<Extent* const> extents) const {
  const auto is_stored = [](const BoundPlan& bound_plan) { return bound_plan.roles.has_value(); };
  if (std::ranges::none_of(bound_plans_, is_stored)) return std::nullopt;
  const std::vector<Place> places = places_of(digest, extents, Unknown::kMayBeIt);
  std::optional<Place> at_begin;
  for (const Place& place : places) {
    const BoundPlan& bound_plan = bound_plans_[place.bound_plan];
    if (!bound_plan.roles) return std::nullopt;
    const bool is_first = history_count_ == kGram && place.tick == kGram - 1;
    const bool has_begun = is_first || bound_plan.roles->has_begun_at(place.tick);
    if (has_begun && bound_plan.roles->is_blank()) at_begin = place;
  }
  return places.size() == 1 ? places.front() : at_begin;
}

// Where several places have fitted for long, returns one of them, in the plan followed last if any
// is there: the last one that the program had reached.
std::optional<PlanCursor::Place> PlanCursor::place_in_loop(uint64_t digest,
                                                           std::span<Extent* const> extents) {
  keep_candidates(digest, extents);
  if (candidates_.empty()) return std::nullopt;
  const Place& first = candidates_.front();
  const Period& period = *bound_plans_[first.bound_plan].plan().period;
  candidate_ticks_ += period.names_always_there(first.tick) ? 1 : 0;
  std::optional<Place> chosen;
  std::tuple<bool, bool, Tick> rank;
  for (Place& place : candidates_) {
    const LearnedPlan& plan = bound_plans_[place.bound_plan].plan();
    const std::tuple own_rank(plan.number == last_plan_, place.tick <= position_, place.tick);
    if (!chosen || own_rank > rank) {
      chosen = place;
      rank = own_rank;
    }
    place.tick = (place.tick + 1) % plan.tick_count();
  }
  return candidate_ticks_ >= kLoopTicksMin ? chosen : std::nullopt;
}

// Drops the candidates that do not expect this tick; where none does, looks for new ones.
void PlanCursor::keep_candidates(uint64_t digest, std::span<Extent* const> extents) {
  std::vector<Place> fitting;
  for (const Place& next : candidates_) {
    if (agrees(bound_plans_[next.bound_plan], next.tick, digest, extents)) fitting.push_back(next);
  }
  if (fitting.empty()) {
    fitting = places_of(digest, extents);
    candidate_ticks_ = 0;
  }
  candidates_.swap(fitting);
}

void PlanCursor::find_place(uint64_t digest, std::span<Extent* const> extents) {
  std::optional<Place> place = place_of(digest, extents);
  if (!place) place = stored_place_of(digest, extents);
  if (!place) place = place_in_loop(digest, extents);
  if (place) return take_place(*place, extents);
  for (BoundPlan& bound_plan : bound_plans_) {
    if (bound_plan.roles) bound_plan.roles->see(digest, extents);
  }
}

void PlanCursor::take_place(const Place& place, std::span<Extent* const> extents) {
  current_ = &bound_plans_[place.bound_plan];
  following_.kind = last_plan_ = current_->plan().number;
  following_.periods = 0;
  is_whole_ = false;
  is_surprised_ = false;
  if (current_->roles) current_->roles->take_place(place.tick);
  for (BoundPlan& bound_plan : bound_plans_) {
    if (bound_plan.roles) bound_plan.roles->forget_seen();
  }
  step_on(place.tick, extents);
  catch_up(false);
}

}  // namespace tencache
