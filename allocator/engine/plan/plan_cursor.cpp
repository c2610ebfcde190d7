// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/plan_cursor.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "learn/tick_digest.h"

namespace tencache {
namespace {

// How many ticks may be missing before an expected one.
constexpr Tick kSkippedMax = 8;
// Each surprise adds to the doubt, and each expected tick reduces it. A few surprises in a row, or
// some in every hundred ticks, are passed over; a program that keeps differing is not this one.
constexpr uint32_t kDoubtPerSurprise = 8;
constexpr uint32_t kDoubtMax = 64;
// At most so many places share a gram; checking more would cost more than it tells.
constexpr size_t kPlacesMax = 1024;

}  // namespace

void PlanCursor::on_tick(uint64_t digest, std::span<Extent* const> extents) {
  MutexLock lock(mutex_);
  ++following_.ticks_seen;
  remember(digest);
  if (current_ != nullptr && !follow(digest, extents)) get_lost();
  if (current_ == nullptr) find_place(digest, extents);
  if (!fetches_.empty()) {
    sink_.fetch(fetches_);
    fetches_.clear();
  }
}

bool PlanCursor::agrees(const BoundPlan& bound_plan, Tick tick, uint64_t digest,
                        std::span<Extent* const> extents) const {
  return bound_plan.learned->period->agrees(
      tick, digest, extents.size(), [extents](size_t index) { return extents[index]->id.load(); });
}

// Returns false for another program, or another place of this one.
bool PlanCursor::follow(uint64_t digest, std::span<Extent* const> extents) {
  const Tick count = current_->learned->tick_count();
  if (agrees(*current_, position_, digest, extents)) {
    if (doubt_ > 0) --doubt_;
    step_on(position_, extents);
    return true;
  }
  doubt_ += kDoubtPerSurprise;
  if (doubt_ > kDoubtMax || place_of(digest, extents) != nullptr) return false;
  const Tick skipped_max = std::min(kSkippedMax, count - 1);
  for (Tick skipped = 1; skipped <= skipped_max; ++skipped) {
    const Tick tick = (position_ + skipped) % count;
    if (!agrees(*current_, tick, digest, extents)) continue;
    for (Tick back = skipped; back > 0; --back) append_requests_of((tick + count - back) % count);
    if (tick < position_) end_period();
    step_on(tick, extents);
    return true;
  }
  return true;  // an extra tick
}

void PlanCursor::step_on(Tick tick, std::span<Extent* const> extents) {
  const std::vector<TraceAccess>& accesses = current_->learned->period->trace.ops[tick].accesses;
  for (size_t index = 0; index < accesses.size(); ++index) {
    current_->bindings[accesses[index].tensor] = {extents[index], extents[index]->id};
  }
  ++following_.ticks_followed;
  append_requests_of(tick);
  position_ = tick + 1;
  if (position_ < current_->learned->tick_count()) return;
  position_ = 0;
  end_period();
}

void PlanCursor::end_period() {
  const uint64_t now = now_ns();
  if (is_whole_) {
    ++following_.periods;
    ++following_.periods_ever;
    following_.last_period_ns = now - period_begin_ns_;
    following_.last_period_plan = current_->learned->number;
    sink_.on_period();
  }
  is_whole_ = true;
  period_begin_ns_ = now;
}

void PlanCursor::get_lost() {
  ++following_.lost;
  current_ = nullptr;
  following_.plan_number = 0;
  following_.periods = 0;
  is_whole_ = false;
  doubt_ = 0;
  // Evictions stay requested: an extent whose last use that was is still as old as before.
  sink_.forget_fetches();
}

// Returns the only place that the last ticks fit; null when there is none or several.
const PlanCursor::Place* PlanCursor::place_of(uint64_t digest,
                                              std::span<Extent* const> extents) const {
  if (history_count_ < kGram) return nullptr;
  const auto found = places_.find(gram());
  if (found == places_.end()) return nullptr;
  const Place* only = nullptr;
  for (const Place& place : found->second) {
    if (!agrees(bound_plans_[place.bound_plan], place.tick, digest, extents)) continue;
    if (only != nullptr) return nullptr;
    only = &place;
  }
  return only;
}

void PlanCursor::find_place(uint64_t digest, std::span<Extent* const> extents) {
  const Place* place = place_of(digest, extents);
  if (place == nullptr) return;
  current_ = &bound_plans_[place->bound_plan];
  following_.plan_number = current_->learned->number;
  step_on(place->tick, extents);
  catch_up();
}

// Requests the fetches that should be under way at this place by now.
void PlanCursor::catch_up() {
  const Tick count = current_->learned->tick_count();
  std::vector<std::pair<Tick, uint32_t>> by_deadline;
  for (const PlannedMove& move : current_->learned->planned.plan.moves) {
    if (move.fetch_at == kNoTick) continue;
    const Tick to_fetch = (position_ + count - move.fetch_at) % count;
    const Tick window = (move.needed_at + count - move.fetch_at) % count;
    if (to_fetch < window) {
      by_deadline.emplace_back((move.needed_at + count - position_) % count, move.tensor);
    }
  }
  std::sort(by_deadline.begin(), by_deadline.end());
  std::vector<uint32_t> tensors;
  tensors.reserve(by_deadline.size());
  for (const auto& [deadline, tensor] : by_deadline) tensors.push_back(tensor);
  append_requests(tensors, &fetches_);
}

void PlanCursor::append_requests_of(Tick tick) {
  append_requests(current_->learned->fetches_at.at(tick), &fetches_);
  append_requests(current_->learned->evictions_after.at(tick), &pending_);
  has_pending_.store(!pending_.empty(), std::memory_order_relaxed);
}

void PlanCursor::append_requests(std::span<const uint32_t> tensors,
                                 std::vector<MoveRequest>* requests) {
  if (tensors.empty()) return;
  const uint64_t now = timestamp();
  for (const uint32_t tensor : tensors) {
    const Binding& binding = current_->bindings[tensor];
    if (binding.extent == nullptr) continue;
    requests->push_back({binding.extent, binding.extent_id,
                         current_->learned->period->trace.tensors[tensor].bytes, now});
  }
}

TENCACHE_SLOW void PlanCursor::give_evictions() {
  std::vector<MoveRequest> requests;
  {
    MutexLock lock(mutex_);
    requests.swap(pending_);
    has_pending_.store(false, std::memory_order_relaxed);
  }
  // The op that has just closed was a use, too, so the requests are dated after it.
  for (MoveRequest& request : requests) request.given_at = timestamp();
  if (!requests.empty()) sink_.evict(requests);
}

void PlanCursor::remember(uint64_t digest) {
  history_[history_count_ % kGram] = digest;
  ++history_count_;
}

uint64_t PlanCursor::gram() const {
  uint64_t value = 0;
  for (uint64_t age = kGram; age > 0; --age) {
    value = TickDigest::mix(value ^ history_[(history_count_ - age) % kGram]);
  }
  return value;
}

PlanCursor::Places PlanCursor::index_places(
    const std::vector<std::shared_ptr<const LearnedPlan>>& plans) {
  Places found;
  for (uint32_t index = 0; index < plans.size(); ++index) {
    const std::vector<uint64_t>& digests = plans[index]->period->digests;
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

// A plan of the same kind has the same tensors. Where a better guess took the place of one, what is
// always there is known by its number.
void PlanCursor::take_bindings(BoundPlan* old, BoundPlan* bound_plan) {
  const Period& before = *old->learned->period;
  const Period& period = *bound_plan->learned->period;
  if (period.is_same_kind(before)) {
    bound_plan->bindings.swap(old->bindings);
    return;
  }
  std::unordered_map<uint64_t, Binding> known;
  for (size_t tensor = 0; tensor < before.extent_ids.size(); ++tensor) {
    if (before.extent_ids[tensor] != 0) known[before.extent_ids[tensor]] = old->bindings[tensor];
  }
  for (size_t tensor = 0; tensor < period.extent_ids.size(); ++tensor) {
    const auto found = known.find(period.extent_ids[tensor]);
    if (found != known.end()) bound_plan->bindings[tensor] = found->second;
  }
}

// Ops wait for the lock, so what takes time happens before it is taken and after it is released.
void PlanCursor::install(const std::vector<std::shared_ptr<const LearnedPlan>>& plans) {
  Places places = index_places(plans);
  std::vector<BoundPlan> bound_plans;
  bound_plans.reserve(plans.size());
  for (const std::shared_ptr<const LearnedPlan>& learned : plans)
    bound_plans.push_back({learned, std::vector<Binding>(learned->period->trace.tensors.size())});
  MutexLock lock(mutex_);
  const uint64_t followed = following_.plan_number;
  bool has_same_ops = false;
  for (BoundPlan& bound_plan : bound_plans) {
    for (BoundPlan& old : bound_plans_) {
      if (old.learned->number != bound_plan.learned->number) continue;
      take_bindings(&old, &bound_plan);
      has_same_ops |= old.learned->number == followed &&
                      old.learned->period->digests == bound_plan.learned->period->digests;
    }
  }
  bound_plans_.swap(bound_plans);
  places_.swap(places);
  current_ = nullptr;
  for (BoundPlan& bound_plan : bound_plans_) {
    if (has_same_ops && bound_plan.learned->number == followed) current_ = &bound_plan;
  }
  if (current_ == nullptr && followed != 0) get_lost();
  is_active_.store(!bound_plans_.empty(), std::memory_order_relaxed);
}

Following PlanCursor::following() const {
  MutexLock lock(mutex_);
  return following_;
}

std::unordered_map<const Extent*, uint64_t> PlanCursor::next_uses() const {
  MutexLock lock(mutex_);
  std::unordered_map<const Extent*, uint64_t> uses;
  if (current_ == nullptr) return uses;
  for (uint32_t tensor = 0; tensor < current_->bindings.size(); ++tensor) {
    const Binding& binding = current_->bindings[tensor];
    if (binding.extent == nullptr || binding.extent->id != binding.extent_id) continue;
    if (current_->learned->uses[tensor].empty()) continue;
    uses[binding.extent] = current_->learned->ticks_to_next_use(tensor, position_);
  }
  return uses;
}

}  // namespace tencache
