// SPDX-License-Identifier: Apache-2.0
//
// The part of Learner that keeps the kinds: it adds and drops them, confirms and corrects guesses,
// and plans.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/plan/learner.h"
#include "engine/plan/machine_meter.h"
#include "learn/period_builder.h"
#include "learn/stall_free_budget.h"
#include "memory/budget.h"

namespace tencache {
namespace {

constexpr size_t kKindsMax = 16;
// A kind is planned anew after this many periods, then after twice as many, and so on.
constexpr uint64_t kFirstReplanPeriods = 1;
// Stalls below this share of compute time do not justify a larger budget.
constexpr double kStallShareMax = 0.01;
// A plan stays as long as the budget differs from its own by no more than one part in this many.
constexpr uint64_t kBudgetParts = 16;
// The search for a stall-free budget makes some more plans, which the program pays for with
// processor time. So it is for periods that are planned in some tenths of a second, and begins when
// a run has turned out not to be short.
constexpr Tick kSearchedTicksMax = 3000;
constexpr uint64_t kSearchedPeriodsMin = 4;

}  // namespace

// Adds the period as a kind. A loop that is no guess replaces its parts: while the library has
// both, hardly any place in either is the only one that fits. It also replaces the kind that the
// program has changed from, or the cursor would go on following that one and skip every difference.
void Learner::add_kind(const Candidate& candidate, Period period) {
  if (!candidate.is_guess) {
    std::erase_if(kinds_, [&](const Kind& kind) {
      return period.contains(*kind.learned->period) || takes_place_of(kind, period);
    });
  }
  drop_least_used();
  Kind kind;
  kind.number = next_number_++;
  kind.is_marked = candidate.is_marked;
  kind.is_guess = candidate.is_guess;
  kind.used_at = look_count_;
  kinds_.push_back(std::move(kind));
  plan_period(&kinds_.back(), std::move(period));
}

// Whether the kind is the one in doubt, in place of which the program now repeats this period.
bool Learner::takes_place_of(const Kind& kind, const Period& period) const {
  const bool is_followed = kind.used_at == look_count_;
  const size_t ticks = kind.learned->period->digests.size();
  return is_doubted_ && is_followed && 10 * period.digests.size() >= 9 * ticks;
}

// Whether the copy before this one names the same extents, too. Without this, a program that names
// others in each step, such as buffers in turn, would seem to repeat every step.
bool Learner::came_twice(const PeriodPlace& place, const Period& period) const {
  const bool was_recorded = place.begin > ticks_.begin() + place.length;
  return was_recorded && is_copy(ticks_, {place.begin - place.length, place.length}, period);
}

Learner::Kind* Learner::kind_at(const PeriodPlace& place) {
  for (Kind& kind : kinds_) {
    if (is_copy(ticks_, place, *kind.learned->period)) return &kind;
  }
  return nullptr;
}

// Notes an exact copy of the kind. The second copy confirms a guess, and shows what had to be
// guessed after the first.
void Learner::confirm(Kind* kind, const PeriodPlace& place) {
  note_no_guess();
  kind->periods_at_copy = kind->periods;
  if (!kind->is_guess) return;
  kind->is_guess = false;
  std::optional<Period> period = build_period(ticks_, place, recorder_);
  if (period && period->is_like(*kind->learned->period)) {
    kind->periods_planned_at = kind->periods;
    plan_period(kind, std::move(*period));
  }
}

// Plans the kind anew for a period that differs from it, if that is worth a guess. Any copy of this
// run is a better guess than a stored kind.
void Learner::correct(Kind* kind, Period period) {
  if (kind->is_stored || is_worth_a_guess(++kind->others_seen)) {
    plan_period(kind, std::move(period));
  }
}

// A program that never repeats itself would be planned at each step, each time in vain. So only
// those guesses are made whose number is a power of two.
bool Learner::is_worth_a_guess(uint64_t count) {
  if (std::has_single_bit(count)) return true;
  MutexLock lock(mutex_);
  ++summary_.passed_over;
  return false;
}

bool Learner::is_full() const { return kinds_.size() >= kKindsMax; }

// Resets the count of guesses in vain unless the library is full. Where more kinds take turns than
// there is room for, each would take the place of the one whose turn comes next.
void Learner::note_no_guess() {
  if (!is_full()) guesses_in_vain_ = 0;
}

void Learner::drop_least_used() {
  if (!is_full()) return;
  kinds_.erase(std::ranges::min_element(kinds_, {}, &Kind::used_at));
  ++dropped_;
}

// Returns the kind that is followed now, or null.
Learner::Kind* Learner::count_periods(const Following& following) {
  Kind* followed = nullptr;
  const uint64_t new_periods = following.periods_ever - periods_seen_;
  periods_seen_ = following.periods_ever;
  for (Kind& kind : kinds_) {
    if (kind.number == following.last_period_kind) kind.periods += new_periods;
    if (kind.number != following.kind) continue;
    kind.used_at = look_count_;
    followed = &kind;
  }
  return followed;
}

// Plans with newer times and speeds, mostly of periods that were followed; the first plan had those
// of reactive ones. To look at a period takes time in proportion to its ticks, so that happens once
// for each. A period has ended once the first tick of the next one is there.
void Learner::plan_again(uint64_t number) {
  if (!has_new_period_) return;
  for (Kind& kind : kinds_) {
    if (kind.number != number) continue;
    const std::optional<PeriodPlace> place = find_copy(ticks_, *kind.learned->period);
    if (!place || place->end() <= looked_at_until_) return;
    looked_at_until_ = place->end();
    has_new_period_ = false;
    kind.periods_at_copy = kind.periods;
    const bool has_new_size = look_at_size(&kind, *place);
    if (!has_new_size && !renew(&kind, *place)) return;
    // The search takes as long as some more plans, so of many sizes it is only for those that come
    // again.
    if (has_new_size && kind.plans.plans.size() > 1) return;
    const bool is_searched =
        kind.periods >= kSearchedPeriodsMin && kind.learned->tick_count() <= kSearchedTicksMax;
    if (is_searched) find_stall_free_budget(kind);
    return;
  }
}

bool Learner::renew(Kind* kind, const PeriodPlace& place) {
  if (kind->periods < std::max(kFirstReplanPeriods, 2 * kind->periods_planned_at)) return false;
  kind->periods_planned_at = kind->periods;
  std::optional<Period> period = build_period(ticks_, place, recorder_);
  if (!period || !period->is_like(*kind->learned->period)) return false;
  kind->is_guess = false;
  plan_period(kind, std::move(*period));
  return true;
}

// Whether the budget is another one by now: the program may change it, and other processes take
// memory of the GPU.
bool Learner::is_for_another_budget(const LearnedPlan& learned) const {
  const uint64_t planned = learned.machine.budget_bytes;
  const uint64_t now = parts_.machine->budget_bytes();
  return std::max(planned, now) - std::min(planned, now) > planned / kBudgetParts;
}

// Plans the kind for the sizes of this copy unless it has a plan for similar ones under this
// budget. Returns whether it planned. It is the cost of making a plan, not of following it, that
// forbids one for each size.
bool Learner::look_at_size(Kind* kind, const PeriodPlace& place) {
  const uint64_t allocated = allocated_bytes(ticks_, place);
  const auto known = kind->plan_where_allocated(allocated);
  if (known != nullptr && !is_for_another_budget(*known)) return false;
  // More sizes than there is room for would be planned again and again.
  if (known == nullptr && kind->plans.is_full() && !std::has_single_bit(++kind->further_sizes)) {
    return false;
  }
  std::optional<Period> period = build_period(ticks_, place, recorder_);
  if (!period || !period->is_same_kind(*kind->learned->period)) return false;
  kind->note_sizes(allocated, period->born_bytes);
  const auto similar = kind->plans.plan_for(period->born_bytes);
  if (similar != nullptr && !is_for_another_budget(*similar)) return false;
  plan_period(kind, std::move(*period));
  return true;
}

// The bytes that a copy allocated are seen without building a period from it. Only a built period
// tells which of them were made once, and what the copy used that others before it had allocated.
std::shared_ptr<const LearnedPlan> Learner::Kind::plan_where_allocated(uint64_t bytes) const {
  const auto seen = std::ranges::find_if(sizes_seen, [bytes](const SizesSeen& sizes) {
    return are_similar_sizes(sizes.allocated_bytes, bytes);
  });
  return seen != sizes_seen.end() ? plans.plan_for(seen->born_bytes) : nullptr;
}

void Learner::Kind::note_sizes(uint64_t allocated_bytes, uint64_t born_bytes) {
  constexpr size_t kSeenMax = 4 * LearnedKind::kSizesMax;
  std::erase_if(sizes_seen, [allocated_bytes](const SizesSeen& sizes) {
    return are_similar_sizes(sizes.allocated_bytes, allocated_bytes);
  });
  if (sizes_seen.size() == kSeenMax) sizes_seen.erase(sizes_seen.begin());
  sizes_seen.push_back({allocated_bytes, born_bytes});
}

// Plans the kind for this period, and installs the plan. What planning costs the program is its
// processor time, however long this thread has to wait for a core.
void Learner::plan_period(Kind* kind, Period period) {
  const uint64_t begin_ns = thread_work_ns();
  const bool is_stored = period.has_unknown_extents();
  // Before the first step, what will be fixed does not exist yet.
  period.trace.fixed_bytes =
      std::max(period.trace.fixed_bytes, parts_.machine->fixed_bytes(period));
  const Machine machine = parts_.machine->measure();
  const std::shared_ptr<const LearnedPlan> learned =
      make_learned_plan(kind->number, std::make_shared<const Period>(std::move(period)), machine);
  const bool is_replan = kind->learned != nullptr;
  if (is_replan && !kind->learned->period->is_same_kind(*learned->period)) {
    kind->periods_at_copy = kind->periods;
  }
  // The budget that was found for an earlier plan of these sizes stands until it is looked for
  // anew.
  if (!is_replan || !are_for_similar_sizes(*learned, *kind->learned)) {
    kind->stall_free_budget_bytes = 0;
  }
  kind->plans.take(learned);
  kind->learned = learned;
  kind->is_stored = is_stored;
  std::vector<LearnedKind> plans;
  plans.reserve(kinds_.size());
  for (const Kind& planned : kinds_) plans.push_back(planned.plans);
  const uint64_t planning_ns = thread_work_ns() - begin_ns;
  TENCACHE_LOG_DEBUG(
      "plan for kind %llu: %u ticks, %zu tensors, %zu moves; budget %.0f MiB, fixed %.0f MiB, "
      "read %.2f GB/s, write %.2f GB/s%s; step %.0f ms, compute %.0f ms, bound %.0f ms; read %.0f "
      "MiB, written %.0f MiB; planned in %.0f ms",
      static_cast<unsigned long long>(kind->number), learned->tick_count(),
      learned->period->trace.tensors.size(), learned->planned.plan.moves.size(),
      static_cast<double>(machine.budget_bytes) / 1048576.0,
      static_cast<double>(learned->period->trace.fixed_bytes) / 1048576.0,
      machine.read_bytes_per_s / 1e9, machine.write_bytes_per_s / 1e9,
      machine.is_half_duplex ? ", in turn" : "",
      static_cast<double>(learned->planned.simulation.step_ns) / 1e6,
      static_cast<double>(learned->planned.simulation.compute_ns) / 1e6,
      static_cast<double>(learned->bound_ns) / 1e6,
      static_cast<double>(learned->planned.simulation.bytes_read) / 1048576.0,
      static_cast<double>(learned->planned.simulation.bytes_written) / 1048576.0,
      static_cast<double>(planning_ns) / 1e6);
  if (parts_.hooks->on_learned_plan && !is_stored) parts_.hooks->on_learned_plan(*learned);
  cursor_.install(plans, parts_.heap->extents());
  MutexLock lock(mutex_);
  summary_.kinds = kinds_.size();
  summary_.replans += is_replan ? 1 : 0;
  summary_.dropped = dropped_;
  summary_.planning_ns += planning_ns;
  published_ = kinds_;
}

// The cursor follows the new plan by now, so only the end of the program waits for this. The search
// ends at the very edge, beyond which a step waits, so it assumes slower links: whoever takes the
// budget shall not wait because the disk is a little slower that day.
void Learner::find_stall_free_budget(Kind& kind) {
  const uint64_t begin_ns = thread_work_ns();
  const LearnedPlan& learned = *kind.learned;
  uint64_t bytes = parts_.heap->budget().limit();
  if (!is_stall_free(learned.planned.simulation, kStallShareMax)) {
    const Machine slower = learned.machine.at_speed(1 - kSpeedErrorShare);
    bytes = budget_with_headroom(
        stall_free_budget(learned.period->trace, slower, kStallShareMax, [this] {
          ticks_.append(recorder_.drain(&positions_));  // the rings go on filling
          return !is_stopping();
        }));
  }
  kind.stall_free_budget_bytes = bytes;
  MutexLock lock(mutex_);
  summary_.planning_ns += thread_work_ns() - begin_ns;
  published_ = kinds_;
}

}  // namespace tencache
