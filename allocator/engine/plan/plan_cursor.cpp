// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/plan_cursor.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace tencache {
namespace {

// How many ticks may be missing before an expected one, and before one that names an extent which
// is always there. The second also bounds how far ahead the chunks of a list op are looked for.
constexpr Tick kSkippedMax = 8;
constexpr Tick kSkippedToKnownMax = 256;
// A surprise adds to the doubt, the next ones in a row add less, and each expected tick reduces it.
// With these values 29 surprises in a row are passed over, and one in every nine ticks for ever. A
// program that differs more is not the plan's.
constexpr uint32_t kDoubtPerSurprise = 8;
constexpr uint32_t kDoubtPerNextSurprise = 2;
constexpr uint32_t kDoubtMax = 64;
// A plan made for at least this share of today's bytes is large enough. If the present plan is, it
// stays while its bytes are at most kNearEnough times those of the smallest such plan.
constexpr double kLargeEnough = 0.94;
constexpr double kNearEnough = 1.1;

}  // namespace

bool PlanCursor::on_tick(uint64_t digest, std::span<Extent* const> extents, bool is_chunk) {
  MutexLock lock(mutex_);
  ++following_.ticks_seen;
  history_[history_count_++ % kGram] = digest;
  if (has_pending_.load(std::memory_order_relaxed)) give_held_fetches();
  if (current_ != nullptr && !follow(digest, extents, is_chunk)) get_lost();
  if (current_ == nullptr) find_place(digest, extents);
  if (!fetches_.empty()) give_fetches(extents);
  return current_ != nullptr && !is_surprised_;
}

// Requests the fetches, but holds those for later ops where an op is only queued while it is open.
// An op that has to wait for room does so while it is open, perhaps long before the device comes to
// it. What later ops need must not take that room first.
void PlanCursor::give_fetches(std::span<Extent* const> extents) {
  if (fetch_time_ == FetchTime::kAtClose) {
    const auto is_own = [extents](const MoveRequest& fetch) {
      return std::ranges::find(extents, fetch.extent) != extents.end();
    };
    // clang 14 cannot compile std::ranges::stable_partition().
    const auto others = std::stable_partition(fetches_.begin(), fetches_.end(), is_own);
    if (others != fetches_.end()) {
      std::vector<MoveRequest>& held = pending_of_thread().fetches;
      held.insert(held.end(), others, fetches_.end());
      fetches_.erase(others, fetches_.end());
    }
  }
  if (!fetches_.empty()) sink_.fetch(fetches_);
  fetches_.clear();
}

// Requests the fetches that were held: the op has closed, or has opened another one within it. An
// extent that was used meanwhile has come by another way. The other requests are dated anew, so
// that they call off evictions that began since.
void PlanCursor::give_held_fetches() {
  const auto own = pending_.find(std::this_thread::get_id());
  if (own == pending_.end() || own->second.fetches.empty()) return;
  const uint64_t now = timestamp();
  for (MoveRequest& fetch : own->second.fetches) {
    if (!fetch.is_outdated()) fetch.given_at = now;
  }
  sink_.fetch(own->second.fetches);
  own->second.fetches.clear();
}

PlanCursor::Pending& PlanCursor::pending_of_thread() {
  has_pending_.store(true, std::memory_order_relaxed);
  return pending_[std::this_thread::get_id()];
}

bool PlanCursor::agrees(const BoundPlan& bound_plan, Tick tick, uint64_t digest,
                        std::span<Extent* const> extents, Unknown unknown) const {
  if (bound_plan.roles) return bound_plan.roles->agrees(tick, digest, extents, unknown);
  return bound_plan.kind.period().agrees(
      tick, digest, extents.size(), [extents](size_t index) { return extents[index]->id.load(); });
}

std::optional<uint32_t> PlanCursor::BoundPlan::known_tensor(uint64_t extent_id) const {
  if (roles) return roles->tensor_of(extent_id);
  const auto known = known_tensors.find(extent_id);
  return known != known_tensors.end() ? std::optional(known->second) : std::nullopt;
}

// Returns false where the cursor has to give up its place.
bool PlanCursor::follow(uint64_t digest, std::span<Extent* const> extents, bool is_chunk) {
  if (agrees(*current_, position_, digest, extents, Unknown::kMayBeIt)) {
    if (doubt_ > 0) --doubt_;
    is_surprised_ = false;
    step_on(position_, extents);
    return true;
  }
  const bool is_passed_over =
      is_chunk || (current_->roles && current_->roles->passes_over(extents));
  if (!is_passed_over) doubt_ += is_surprised_ ? kDoubtPerNextSurprise : kDoubtPerSurprise;
  std::optional<Place> other = place_of(digest, extents);
  if (other && &bound_plans_[other->bound_plan] != current_) return false;
  if (doubt_ > kDoubtMax && !other) return false;
  if (const std::optional<Tick> tick = other ? std::nullopt : tick_ahead(digest, extents)) {
    pass_over(current_->plan().period->trace.ticks_from(position_, *tick));
    is_surprised_ = false;
    step_on(*tick, extents);
    return true;
  }
  if (is_chunk && !other) {
    is_surprised_ = true;
    follow_chunk(extents);
    return true;
  }
  if (!other) other = place_in_loop(digest, extents);
  is_surprised_ = true;
  if (!other) return true;
  if (&bound_plans_[other->bound_plan] != current_) get_lost();
  take_place(*other, extents);
  return true;
}

// Passes over ticks of the plan that the program left out. A tensor that the plan both evicts and
// fetches there stays.
void PlanCursor::pass_over(Tick count) {
  std::vector<uint32_t> evicted;
  for (; count > 0; --count) {
    const PlanByTick& moves = current_->plan().moves;
    for (const uint32_t tensor : moves.fetches_at.at(position_)) std::erase(evicted, tensor);
    append_fetches_of(position_);
    const auto& leaving = moves.evictions_after.at(position_);
    evicted.insert(evicted.end(), leaving.begin(), leaving.end());
    position_ = (position_ + 1) % current_->plan().tick_count();
    if (position_ == 0) end_period();
  }
  for (const uint32_t tensor : current_->plan().moves.fetches_at.at(position_)) {
    std::erase(evicted, tensor);
  }
  append_evictions(evicted);
}

// The plan has the same list op here, in other chunks. This goes on to the last chunk of the plan
// whose extents the program's chunk names. That one may name other extents, too, which are still to
// come.
void PlanCursor::follow_chunk(std::span<Extent* const> extents) {
  ++following_.ticks_followed;
  const LearnedPlan& plan = current_->plan();
  const std::vector<TraceOp>& ops = plan.period->trace.ops;
  Tick ahead = 0;
  for (const Extent* extent : extents) {
    const std::optional<uint32_t> tensor = current_->known_tensor(extent->id);
    if (!tensor) continue;
    const uint64_t ticks = plan.ticks_to_next_use(*tensor, position_);
    const Tick use = static_cast<Tick>((position_ + ticks) % plan.tick_count());
    if (ticks > kSkippedToKnownMax || ops[use].name != ops[position_].name) continue;
    ahead = std::max(ahead, static_cast<Tick>(ticks));
  }
  pass_over(ahead);
}

// The next tick of the plan that agrees, if not too many are missing before it.
std::optional<Tick> PlanCursor::tick_ahead(uint64_t digest,
                                           std::span<Extent* const> extents) const {
  const Period& period = *current_->plan().period;
  const Tick count = period.trace.tick_count();
  const Tick skipped_max = std::min(kSkippedToKnownMax, count - 1);
  for (Tick skipped = 1; skipped <= skipped_max; ++skipped) {
    const Tick tick = (position_ + skipped) % count;
    if (!agrees(*current_, tick, digest, extents)) continue;
    if (skipped <= kSkippedMax || period.names_always_there(tick)) return tick;
  }
  return std::nullopt;
}

void PlanCursor::step_on(Tick tick, std::span<Extent* const> extents) {
  candidates_.clear();
  const std::vector<TraceAccess>& accesses = current_->kind.period().trace.ops[tick].accesses;
  for (size_t index = 0; index < accesses.size(); ++index) {
    current_->bindings[accesses[index].tensor] = noted(extents[index]);
  }
  ++following_.ticks_followed;
  if (current_->roles) {
    ++following_.stored_ticks_followed;
    current_->roles->follow(tick, extents);
  }
  const bool tells_size = note_sizes(tick, extents);
  append_fetches_of(tick);
  append_evictions(current_->plan().moves.evictions_after.at(tick));
  position_ = tick + 1;
  if (position_ == current_->plan().tick_count()) {
    position_ = 0;
    end_period();
  }
  if (tells_size) choose_plan();
  if (std::exchange(is_replaced_, false)) catch_up(true);
}

// Returns whether the tick tells the kind's plans apart.
bool PlanCursor::note_sizes(Tick tick, std::span<Extent* const> extents) {
  if (current_->kind.plans.size() == 1) return false;
  bool tells_size = false;
  const std::vector<TraceAccess>& accesses = current_->kind.period().trace.ops[tick].accesses;
  for (size_t index = 0; index < accesses.size(); ++index) {
    const uint32_t tensor = accesses[index].tensor;
    if (!current_->has_own_size[tensor]) continue;
    tells_size = true;
    const size_t place = current_->sized_access_count++ % kSizedAccesses;
    current_->sized_accesses.at(place) = {tensor, extents[index]->bytes};
  }
  return tells_size;
}

// Takes the smallest plan that is large enough for today's sizes, else the largest. Tensors that
// grow differently may disagree, so the cursor goes down only once a period.
void PlanCursor::choose_plan() {
  double named_bytes = 0;
  std::vector<double> expected(current_->kind.plans.size(), 0);
  const size_t count = std::min(current_->sized_access_count, kSizedAccesses);
  for (const SizedAccess& access : std::span(current_->sized_accesses).first(count)) {
    named_bytes += static_cast<double>(access.bytes);
    for (size_t plan = 0; plan < expected.size(); ++plan) {
      const Trace& trace = current_->kind.plans[plan]->period->trace;
      expected[plan] += static_cast<double>(trace.tensors[access.tensor].bytes);
    }
  }
  const double needed = kLargeEnough * named_bytes;
  size_t best = 0;
  while (best + 1 < expected.size() && expected[best] < needed) ++best;
  const size_t chosen = current_->chosen;
  if (best == chosen || (best < chosen && has_gone_down_)) return;
  if (expected[chosen] >= needed && expected[chosen] <= kNearEnough * expected[best]) return;
  if (best < chosen) has_gone_down_ = true;
  current_->chosen = best;
  is_replaced_ = true;
}

void PlanCursor::end_period() {
  const uint64_t now = now_ns();
  if (is_whole_) {
    ++following_.periods;
    ++following_.periods_ever;
    const uint64_t number = current_->plan().number;
    const uint64_t born_bytes = current_->plan().period->born_bytes;
    if (number != following_.last_period_kind || born_bytes != following_.last_period_born_bytes) {
      following_.last_times = {};
    }
    following_.last_times.add(now - period_begin_ns_);
    following_.last_period_kind = number;
    following_.last_period_born_bytes = born_bytes;
    sink_.on_period();
  }
  is_whole_ = true;
  has_gone_down_ = false;
  period_begin_ns_ = now;
}

void PlanCursor::get_lost() {
  ++following_.lost;
  give_up_place();
}

void PlanCursor::give_up_place() {
  if (current_ != nullptr && current_->roles) current_->roles->give_up();
  current_ = nullptr;
  following_.kind = 0;
  following_.periods = 0;
  is_whole_ = false;
  is_surprised_ = false;
  is_replaced_ = false;
  doubt_ = 0;
  // Evictions stay requested: nothing has made their extents newer.
  for (auto& [thread, pending] : pending_) pending.fetches.clear();
  sink_.forget_fetches();
}

// Requests the fetches that should be under way at this place by now, and those of what the plan
// expects to be resident. Before a plan is followed, anything may be cold, and another plan may
// have kept other tensors. Where the plan took the place of another one, requests the evictions,
// too, that the plan would have requested by now.
void PlanCursor::catch_up(bool with_evictions) {
  const LearnedPlan& plan = current_->plan();
  const Trace& trace = plan.period->trace;
  std::vector<bool> is_away(current_->bindings.size());  // as the plan has it
  std::vector<std::pair<uint64_t, uint32_t>> by_deadline;
  std::vector<uint32_t> leaving;
  for (const PlannedMove& move : plan.planned.plan.moves) {
    if (move.fetch_at == kNoTick) continue;
    const Tick window = trace.ticks_from(move.fetch_at, move.needed_at);
    if (trace.ticks_from(move.fetch_at, position_) < window) {
      by_deadline.emplace_back(trace.ticks_from(position_, move.needed_at), move.tensor);
    }
    const Tick left_at = move.evict_after + 1;
    const Tick since_eviction = trace.ticks_from(left_at, position_);
    if (since_eviction < trace.ticks_from(left_at, move.needed_at)) is_away[move.tensor] = true;
    const Tick away = trace.ticks_from(move.evict_after, move.fetch_at);
    if (with_evictions && since_eviction < away) leaving.push_back(move.tensor);
  }
  for (uint32_t tensor = 0; tensor < is_away.size(); ++tensor) {
    const Extent* extent = current_->bindings[tensor].extent;
    if (extent == nullptr || is_away[tensor] || plan.uses[tensor].empty()) continue;
    if (plan.period->extent_ids[tensor] == 0 || Extent::usable_in(extent->state())) continue;
    by_deadline.emplace_back(plan.ticks_to_next_use(tensor, position_), tensor);
  }
  std::ranges::sort(by_deadline);
  std::vector<uint32_t> tensors;
  tensors.reserve(by_deadline.size());
  for (const auto& [deadline, tensor] : by_deadline) tensors.push_back(tensor);
  append_requests(tensors, &fetches_);
  append_evictions(leaving);
}

// Appends the fetches of this tick, and those of the plans for larger sizes: a tensor that such a
// plan evicted in the step before may be cold, although the present plan keeps it.
void PlanCursor::append_fetches_of(Tick tick) {
  append_requests(current_->plan().moves.fetches_at.at(tick), &fetches_);
  for (size_t larger = current_->chosen + 1; larger < current_->kind.plans.size(); ++larger) {
    for (const uint32_t tensor : current_->kind.plans[larger]->moves.fetches_at.at(tick)) {
      const Extent* extent = current_->bindings[tensor].extent;
      if (extent == nullptr || Extent::usable_in(extent->state())) continue;
      append_requests(std::span(&tensor, 1), &fetches_);
    }
  }
}

void PlanCursor::append_evictions(std::span<const uint32_t> tensors) {
  if (tensors.empty()) return;
  append_requests(tensors, &pending_of_thread().evictions);
}

void PlanCursor::append_requests(std::span<const uint32_t> tensors,
                                 std::vector<MoveRequest>* requests) {
  if (tensors.empty()) return;
  const uint64_t now = timestamp();
  for (const uint32_t tensor : tensors) {
    const NotedExtent& binding = current_->bindings[tensor];
    if (binding.extent == nullptr) continue;
    requests->push_back({binding.extent, binding.id, binding.bytes, now});
  }
}

TENCACHE_SLOW void PlanCursor::give_pending() {
  std::vector<MoveRequest> evictions;
  {
    MutexLock lock(mutex_);
    give_held_fetches();
    auto own = pending_.extract(std::this_thread::get_id());
    if (own.empty()) return;
    evictions = std::move(own.mapped().evictions);
    has_pending_.store(!pending_.empty(), std::memory_order_relaxed);
  }
  // The op that has just closed was a use, too, so the requests are dated after it.
  for (MoveRequest& request : evictions) request.given_at = timestamp();
  if (!evictions.empty()) sink_.evict(evictions);
}

// The place among the kind's plans of the one for about so many bytes, else of the smallest that is
// for more, else of the largest.
size_t PlanCursor::place_of_size(const LearnedKind& kind, uint64_t born_bytes) {
  const auto similar = kind.plan_for(born_bytes);
  size_t place = 0;
  while (place + 1 < kind.plans.size() && kind.plans[place] != similar &&
         (similar != nullptr || kind.plans[place]->period->born_bytes < born_bytes)) {
    ++place;
  }
  return place;
}

// Chooses the plan for the old one's sizes, and takes over the extents that were found for its
// tensors. A plan of the same kind has the same tensors. For a plan of another kind, only the
// tensors that are always there are known.
void PlanCursor::take_bindings(BoundPlan* old, BoundPlan* bound_plan) {
  bound_plan->chosen = place_of_size(bound_plan->kind, old->plan().period->born_bytes);
  if (!bound_plan->kind.period().is_same_kind(old->kind.period())) return;
  if (bound_plan->roles && old->roles) bound_plan->roles = std::move(old->roles);
  for (size_t tensor = 0; tensor < old->bindings.size(); ++tensor) {
    const NotedExtent& binding = old->bindings[tensor];
    if (binding.extent != nullptr) bound_plan->bindings[tensor] = binding;
  }
}

PlanCursor::BoundPlan PlanCursor::bind(const LearnedKind& kind, const ExtentsById& extents) {
  BoundPlan bound_plan;
  bound_plan.kind = kind;
  if (kind.period().has_unknown_extents()) bound_plan.roles.emplace(kind.plans.front()->period);
  const size_t count = kind.period().trace.tensors.size();
  bound_plan.bindings.resize(count);
  bound_plan.has_own_size.resize(count);
  for (size_t tensor = 0; tensor < count; ++tensor) {
    const uint64_t extent_id = kind.period().extent_ids[tensor];
    const auto extent = extents.find(extent_id);
    if (extent != extents.end()) bound_plan.bindings[tensor] = extent->second;
    if (extent_id != 0 && !bound_plan.roles) {
      bound_plan.known_tensors[extent_id] = static_cast<uint32_t>(tensor);
    }
    const uint64_t bytes = kind.period().trace.tensors[tensor].bytes;
    bound_plan.has_own_size[tensor] = std::ranges::any_of(kind.plans, [&](const auto& plan) {
      return plan->period->trace.tensors[tensor].bytes != bytes;
    });
  }
  return bound_plan;
}

// Ops wait for the lock, so what takes time happens before it is taken and after it is released.
void PlanCursor::install(const std::vector<LearnedKind>& kinds,
                         const std::vector<ListedExtent>& extents) {
  Places places = index_places(kinds);
  ExtentsById by_id;
  for (const ListedExtent& listed : extents) {
    const uint64_t id = listed.extent->id.load();
    by_id[id] = {listed.extent, id, listed.bytes};
  }
  std::vector<BoundPlan> bound_plans;
  bound_plans.reserve(kinds.size());
  for (const LearnedKind& kind : kinds) bound_plans.push_back(bind(kind, by_id));
  MutexLock lock(mutex_);
  const uint64_t followed = following_.kind;
  bool has_same_ops = false;
  for (BoundPlan& bound_plan : bound_plans) {
    for (BoundPlan& old : bound_plans_) {
      if (old.kind.number() != bound_plan.kind.number()) continue;
      take_bindings(&old, &bound_plan);
      has_same_ops |= old.kind.number() == followed &&
                      old.kind.period().digests == bound_plan.kind.period().digests;
    }
  }
  bound_plans_.swap(bound_plans);
  places_.swap(places);
  candidates_.clear();
  current_ = nullptr;
  for (BoundPlan& bound_plan : bound_plans_) {
    if (has_same_ops && bound_plan.kind.number() == followed) current_ = &bound_plan;
  }
  is_replaced_ = current_ != nullptr;
  if (current_ == nullptr && followed != 0) give_up_place();
  is_active_.store(!bound_plans_.empty(), std::memory_order_relaxed);
}

Following PlanCursor::following() const {
  MutexLock lock(mutex_);
  return following_;
}

std::vector<uint64_t> PlanCursor::found_extents(uint64_t kind) const {
  MutexLock lock(mutex_);
  for (const BoundPlan& bound_plan : bound_plans_) {
    if (bound_plan.roles && bound_plan.kind.number() == kind) {
      return bound_plan.roles->extent_ids();
    }
  }
  return {};
}

// Ops wait for the lock, so it is held for a copy only: the table takes milliseconds for tens of
// thousands of extents.
std::unordered_map<const Extent*, uint64_t> PlanCursor::next_uses() const {
  std::shared_ptr<const LearnedPlan> plan;
  std::vector<NotedExtent> bindings;
  Tick position = 0;
  {
    MutexLock lock(mutex_);
    if (current_ == nullptr) return {};
    plan = current_->kind.plans[current_->chosen];
    bindings = current_->bindings;
    position = position_;
  }
  std::unordered_map<const Extent*, uint64_t> uses;
  uses.reserve(bindings.size());
  for (uint32_t tensor = 0; tensor < bindings.size(); ++tensor) {
    const NotedExtent& binding = bindings[tensor];
    if (binding.extent == nullptr || !binding.is_current()) continue;
    if (plan->uses[tensor].empty()) continue;
    uses[binding.extent] = plan->ticks_to_next_use(tensor, position);
  }
  return uses;
}

uint64_t PlanCursor::copy_ahead_bytes() const {
  MutexLock lock(mutex_);
  return current_ == nullptr ? 0 : current_->plan().planned.plan.copy_ahead_bytes;
}

}  // namespace tencache
