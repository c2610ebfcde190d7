// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/learner.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/service_thread.h"
#include "engine/gate/op_timer.h"
#include "engine/plan/machine_meter.h"
#include "learn/period_builder.h"
#include "learn/stall_free_budget.h"
#include "memory/budget.h"

namespace tencache {
namespace {

constexpr size_t kKindsMax = 16;
// A search for repetitions takes time in proportion to the ticks it looks at. So the next one waits
// until there are half as many again.
constexpr uint64_t kFirstSearchTicks = 64;
// In a program that marks its steps, a search without marks waits until this many times the last
// step's ticks have passed.
constexpr uint64_t kSegmentsBeforeSearch = 2;
// A kind is planned anew after this many periods, then after twice as many, and so on.
constexpr uint64_t kFirstReplanPeriods = 1;
// Stalls below this share of compute time do not justify a larger budget.
constexpr double kStallShareMax = 0.01;
// A step that has this part of a kind's ticks is one of its steps, with more or fewer ticks here
// and there.
constexpr double kSameShare = 0.9;
// A step that has this part of the only known copy of a kind is a better copy of it: the first step
// creates what later ones use.
constexpr double kBetterShare = 0.5;
// The loop that a row of additional ticks holds may end so many ticks before the row.
constexpr uint64_t kTrailingTicksMax = 16;
// The search for a stall-free budget makes some more plans, so it runs only where planning is
// quick.
constexpr uint64_t kQuickPlanningNs = 200'000'000;

// Plans of one kind are for sizes that differ by more than this.
constexpr double kSimilarSizes = 1.08;
constexpr size_t kSizesMax = 6;

bool is_similar(uint64_t a, uint64_t b) {
  const auto [less, more] = std::minmax({static_cast<double>(a), static_cast<double>(b)});
  return more <= kSimilarSizes * less;
}

uint64_t bytes_of(const std::shared_ptr<const LearnedPlan>& plan) {
  return plan->period->born_bytes;
}

/// Drops the plan whose sizes the next larger one serves best.
void drop_nearest(std::vector<std::shared_ptr<const LearnedPlan>>* plans) {
  size_t nearest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t index = 0; index + 1 < plans->size(); ++index) {
    const double ratio = static_cast<double>(bytes_of((*plans)[index + 1])) /
                         static_cast<double>(std::max<uint64_t>(bytes_of((*plans)[index]), 1));
    if (ratio >= least) continue;
    least = ratio;
    nearest = index;
  }
  plans->erase(plans->begin() + static_cast<ptrdiff_t>(nearest));
}

bool has_similar_plan(const LearnedKind& kind, uint64_t bytes) {
  return std::ranges::any_of(kind.plans, [bytes](const std::shared_ptr<const LearnedPlan>& plan) {
    return is_similar(bytes_of(plan), bytes);
  });
}

}  // namespace

Learner::~Learner() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    nudged_.notify_all();
  }
  if (worker_.joinable()) worker_.join();
}

void Learner::start() {
  worker_ = start_service_thread("tencache-learn", [this] { work(); });
}

void Learner::nudge() {
  if (is_nudged_.exchange(true)) return;
  MutexLock lock(mutex_);
  nudged_.notify_one();
}

// The cursor nudges the learner while holding its own lock, so mutex_ is never held when calling
// it.
LearnerSummary Learner::summary() const {
  const Following following = cursor_.following();
  MutexLock lock(mutex_);
  LearnerSummary summary = summary_;
  summary.following = following;
  for (const Kind& kind : published_) {
    if (summary.learned == nullptr || kind.number == following.last_period_plan) {
      summary.learned = kind.learned;
      summary.stall_free_budget_bytes = kind.stall_free_budget_bytes;
    }
  }
  return summary;
}

void Learner::work() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (!is_stopping_ && !is_nudged_.load()) nudged_.wait(mutex_);
      if (is_stopping_) return;
    }
    is_nudged_.store(false);
    try {
      look();
    } catch (const std::exception& error) {
      TENCACHE_LOG_WARNING(
          "learning stopped: %s; from now on the least recently used tensors leave first",
          error.what());
      cursor_.install({});
      return;
    }
  }
}

void Learner::look() {
  ++look_count_;
  // Taken before the events, so that the events of these ops are among those drained next.
  const std::vector<OpTime> op_times =
      parts_.op_timer != nullptr ? parts_.op_timer->take_finished() : std::vector<OpTime>();
  stream_.append(recorder_.drain(&positions_));
  stream_.append_times(op_times);
  {
    MutexLock lock(mutex_);
    summary_.events_lost = stream_.lost_count();
  }
  const Following following = cursor_.following();
  Kind* followed = count_periods(following);
  // Only whole periods count: parts of one kind may look like parts of another, still unknown one.
  if (followed != nullptr && following.periods > 0) {
    repeats_from_ = stream_.end();
    next_search_at_ = repeats_from_ + kFirstSearchTicks;
    // A followed kind may also be only a part of what the marks enclose.
    const std::optional<PeriodPlace> segment = last_segment(stream_);
    if (segment && followed->learned->tick_count() >= segment->length) {
      mark_seen_ = stream_.marks().back();
    } else {
      look_at_marks();
    }
    plan_again(following.last_period_plan);
    return;
  }
  look_at_marks();
  look_for_repeats();
}

void Learner::look_at_marks() {
  if (stream_.marks().empty() || stream_.marks().back() == mark_seen_) return;
  mark_seen_ = stream_.marks().back();
  repeats_from_ = mark_seen_;
  next_search_at_ = mark_seen_ + kFirstSearchTicks;
  if (const std::optional<PeriodPlace> place = find_marked_period(stream_)) {
    learn({*place, 0, true, false});
  } else if (const std::optional<PeriodPlace> segment = last_segment(stream_)) {
    learn_segment(*segment);
  }
}

void Learner::look_for_repeats() {
  if (stream_.end() == stream_.begin()) return;
  const std::optional<PeriodPlace> segment = last_segment(stream_);
  const uint64_t ticks = segment ? segment->length : 0;
  next_search_at_ = std::max(next_search_at_, mark_seen_ + kSegmentsBeforeSearch * ticks);
  if (stream_.end() < next_search_at_) return;
  for (const PeriodPlace& place : find_repeats(stream_, repeats_from_, stream_.end() - 1)) {
    if (learn({place, config_.peak_bytes_min, false, false})) break;
  }
  const uint64_t looked_at = stream_.end() - std::max(stream_.begin(), repeats_from_);
  next_search_at_ = stream_.end() + std::max(kFirstSearchTicks, looked_at / 2);
}

// A segment is a step of a known kind, perhaps with something between its ops, or a new kind.
void Learner::learn_segment(const PeriodPlace& segment) {
  if (Kind* known = kind_at(segment)) {
    confirm(known, segment);
    look_at_size(known, segment);
    return;
  }
  Kind* nearest = nullptr;
  Comparison comparison;
  for (Kind& kind : kinds_) {
    if (!kind.is_marked) continue;
    Comparison other = compare(stream_, segment, *kind.learned->period);
    if (nearest != nullptr && other.of_period <= comparison.of_period) continue;
    nearest = &kind;
    comparison = std::move(other);
  }
  if (comparison.of_period >= kSameShare && !comparison.additions.empty()) {
    for (const PeriodPlace& addition : comparison.additions) learn_addition(addition);
    return;
  }
  const bool is_alike = comparison.of_period >= kBetterShare || comparison.of_segment >= kSameShare;
  if (is_alike && nearest->is_guess) {
    if (std::optional<Period> period = build_period(stream_, segment, recorder_)) {
      correct(nearest, std::move(*period));
    }
  } else if (comparison.of_period < kSameShare) {
    learn({segment, 0, true, true});
  }
}

void Learner::learn_addition(const PeriodPlace& addition) {
  for (uint64_t trailing = 0; trailing < kTrailingTicksMax; ++trailing) {
    for (const PeriodPlace& place :
         find_repeats(stream_, addition.begin, addition.end() - trailing)) {
      if (learn({place, config_.peak_bytes_min, false, false})) return;
    }
  }
  learn({addition, config_.peak_bytes_min, false, true});
}

// True when the place holds a period worth planning, including one that is known.
bool Learner::learn(const Candidate& candidate) {
  if (Kind* known = kind_at(candidate.place)) {
    if (!candidate.is_guess) confirm(known, candidate.place);
    look_at_size(known, candidate.place);
    return true;
  }
  std::optional<Period> period = build_period(stream_, candidate.place, recorder_);
  if (!period || period->trace.peak_bytes() < candidate.peak_bytes_min) return false;
  if (!recognise(candidate, *period)) add_kind(candidate, std::move(*period));
  return true;
}

// Whether the period is known already, as a whole, as a part, or as a guess that is not as good.
bool Learner::recognise(const Candidate& candidate, const Period& period) {
  const auto is_known = [&period](const Kind& kind) {
    return kind.learned->period->is_same_loop(period);
  };
  if (std::ranges::any_of(kinds_, is_known)) return true;
  // A guess may take for always there what was only never seen to end. So it seems to hold the
  // better period.
  for (Kind& kind : kinds_) {
    if (!kind.is_guess || !kind.learned->period->is_like(period)) continue;
    if (candidate.is_guess) {
      correct(&kind, period);
    } else {
      kind.is_guess = false;
      plan_period(&kind, period);
    }
    return true;
  }
  return std::ranges::any_of(
      kinds_, [&period](const Kind& kind) { return kind.learned->period->contains(period); });
}

// A loop takes the place of its parts: as long as both are in the library, hardly any place of
// either is the only one that fits.
void Learner::add_kind(const Candidate& candidate, Period period) {
  if (!candidate.is_guess) {
    std::erase_if(kinds_, [&](const Kind& kind) { return period.contains(*kind.learned->period); });
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

Learner::Kind* Learner::kind_at(const PeriodPlace& place) {
  for (Kind& kind : kinds_) {
    if (is_copy(stream_, place, *kind.learned->period)) return &kind;
  }
  return nullptr;
}

// The second copy shows what was a guess after the first.
void Learner::confirm(Kind* kind, const PeriodPlace& place) {
  if (!kind->is_guess) return;
  kind->is_guess = false;
  std::optional<Period> period = build_period(stream_, place, recorder_);
  if (period && period->is_like(*kind->learned->period)) {
    plan_period(kind, std::move(*period));
  }
}

// A program that never repeats itself exactly would be planned at each step, so only every copy
// whose number is a power of two takes the place of the guess.
void Learner::correct(Kind* kind, Period period) {
  ++kind->others_seen;
  if (!std::has_single_bit(kind->others_seen)) return;
  plan_period(kind, std::move(period));
}

void Learner::drop_least_used() {
  if (kinds_.size() < kKindsMax) return;
  kinds_.erase(std::min_element(kinds_.begin(), kinds_.end(), [](const Kind& a, const Kind& b) {
    return a.used_at < b.used_at;
  }));
  ++dropped_;
}

// Returns the kind that is followed now, or null.
Learner::Kind* Learner::count_periods(const Following& following) {
  Kind* followed = nullptr;
  const uint64_t new_periods = following.periods_ever - periods_seen_;
  periods_seen_ = following.periods_ever;
  for (Kind& kind : kinds_) {
    if (kind.number == following.last_period_plan) kind.periods += new_periods;
    if (kind.number != following.plan_number) continue;
    kind.used_at = look_count_;
    followed = &kind;
  }
  return followed;
}

// Uses the times and speeds of periods that were followed; the first plan's were of reactive ones.
void Learner::plan_again(uint64_t number) {
  for (Kind& kind : kinds_) {
    if (kind.number != number) continue;
    const std::optional<PeriodPlace> place = find_copy(stream_, *kind.learned->period);
    if (!place) return;
    look_at_size(&kind, *place);
    if (kind.periods < std::max(kFirstReplanPeriods, 2 * kind.periods_planned_at)) return;
    kind.periods_planned_at = kind.periods;
    std::optional<Period> period = build_period(stream_, *place, recorder_);
    if (!period || !period->is_like(*kind.learned->period)) return;
    kind.is_guess = false;
    const uint64_t planning_ns = plan_period(&kind, std::move(*period));
    if (planning_ns < kQuickPlanningNs) find_stall_free_budget(kind);
    return;
  }
}

// Plans the kind for the sizes of this copy unless it has a plan for similar ones. It is the cost
// of a plan, not of following it, that forbids one for each size.
void Learner::look_at_size(Kind* kind, const PeriodPlace& place) {
  if (has_similar_plan(kind->plans, born_bytes(stream_, place))) return;
  // More sizes than there is room for would be planned again and again.
  if (kind->plans.plans.size() == kSizesMax && !std::has_single_bit(++kind->further_sizes)) return;
  std::optional<Period> period = build_period(stream_, place, recorder_);
  if (period && period->is_same_kind(*kind->learned->period)) plan_period(kind, std::move(*period));
}

// A plan takes the place of the one for similar sizes. A better guess takes the place of all.
void Learner::take_plan(Kind* kind, const std::shared_ptr<const LearnedPlan>& learned) {
  auto& plans = kind->plans.plans;
  if (!plans.empty() && !plans.front()->period->is_same_kind(*learned->period)) plans.clear();
  std::erase_if(plans, [&](const std::shared_ptr<const LearnedPlan>& plan) {
    return is_similar(bytes_of(plan), bytes_of(learned));
  });
  if (plans.size() == kSizesMax) drop_nearest(&plans);
  plans.insert(std::ranges::upper_bound(plans, bytes_of(learned), {}, bytes_of), learned);
  kind->learned = learned;
  kind->stall_free_budget_bytes = 0;
}

// Returns the processor time that planning took. That is what it costs the program, however long
// this thread has to wait for a core.
uint64_t Learner::plan_period(Kind* kind, Period period) {
  const uint64_t begin_ns = thread_work_ns();
  const Machine machine = parts_.machine->measure(&period.trace.fixed_bytes);
  const std::shared_ptr<const LearnedPlan> learned =
      make_learned_plan(kind->number, std::make_shared<const Period>(std::move(period)), machine);
  const bool is_replan = kind->learned != nullptr;
  take_plan(kind, learned);
  std::vector<LearnedKind> plans;
  plans.reserve(kinds_.size());
  for (const Kind& planned : kinds_) plans.push_back(planned.plans);
  const uint64_t planning_ns = thread_work_ns() - begin_ns;
  TENCACHE_LOG_DEBUG(
      "plan for kind %llu: %u ticks, %zu tensors, %zu moves; budget %.0f MiB, fixed %.0f MiB, "
      "read %.2f GB/s, write %.2f GB/s; step %.0f ms, compute %.0f ms, bound %.0f ms; read %.0f "
      "MiB, written %.0f MiB; planned in %.0f ms",
      static_cast<unsigned long long>(kind->number), learned->tick_count(),
      learned->period->trace.tensors.size(), learned->planned.plan.moves.size(),
      static_cast<double>(machine.budget_bytes) / 1048576.0,
      static_cast<double>(learned->period->trace.fixed_bytes) / 1048576.0,
      machine.read_bytes_per_s / 1e9, machine.write_bytes_per_s / 1e9,
      static_cast<double>(learned->planned.simulation.step_ns) / 1e6,
      static_cast<double>(learned->planned.simulation.compute_ns) / 1e6,
      static_cast<double>(learned->bound_ns) / 1e6,
      static_cast<double>(learned->planned.simulation.bytes_read) / 1048576.0,
      static_cast<double>(learned->planned.simulation.bytes_written) / 1048576.0,
      static_cast<double>(planning_ns) / 1e6);
  if (parts_.hooks->on_learned_plan) parts_.hooks->on_learned_plan(*learned);
  cursor_.install(plans, parts_.heap->extents());
  MutexLock lock(mutex_);
  summary_.kinds = kinds_.size();
  summary_.replans += is_replan ? 1 : 0;
  summary_.dropped = dropped_;
  summary_.planning_ns += planning_ns;
  published_ = kinds_;
  return planning_ns;
}

// The cursor follows the new plan by now, so only the end of the program waits for this.
void Learner::find_stall_free_budget(Kind& kind) {
  const uint64_t begin_ns = thread_work_ns();
  const LearnedPlan& learned = *kind.learned;
  uint64_t bytes = config_.budget_bytes;
  if (!is_stall_free(learned.planned.simulation, kStallShareMax)) {
    bytes = budget_with_headroom(
        stall_free_budget(learned.period->trace, learned.machine, kStallShareMax, [this] {
          stream_.append(recorder_.drain(&positions_));  // the rings go on filling
          return !is_stopping();
        }));
  }
  kind.stall_free_budget_bytes = bytes;
  MutexLock lock(mutex_);
  summary_.planning_ns += thread_work_ns() - begin_ns;
  published_ = kinds_;
}

bool Learner::is_stopping() const {
  MutexLock lock(mutex_);
  return is_stopping_;
}

}  // namespace tencache
