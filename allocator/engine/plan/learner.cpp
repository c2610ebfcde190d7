// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/learner.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/service_thread.h"
#include "engine/gate/op_timer.h"
#include "learn/period_builder.h"
#include "memory/heap.h"

namespace tencache {
namespace {

// A search for repetitions takes time in proportion to the ticks it looks at. So the next one waits
// for half as many more (in the second step, where a repetition is near, for a sixteenth), and for
// kFirstSearchTicks at least.
constexpr uint64_t kFirstSearchTicks = 64;
constexpr uint64_t kSearchPart = 2;
constexpr uint64_t kSearchPartInSecondStep = 16;
// In a program that marks its steps, a search without marks waits until this many times the last
// step's ticks have passed.
constexpr uint64_t kSegmentsBeforeSearch = 2;
// A step that has this part of a kind's ticks is one of its steps, with more or fewer ticks here
// and there. A step of whose ticks a guess has this part is a copy of that guess.
constexpr double kSameShare = 0.9;
// A step that has this part of the only known copy of a kind is a better copy of it: the first step
// creates what later ones use. A loop of this run that has this part of a stored kind's ticks
// replaces that kind.
constexpr double kBetterShare = 0.5;
// A sequence of additional ticks may hold a loop, which ends fewer than kTrailingTicksMax ticks
// before the sequence does. All searches for it together look at kLoopSearchTicks ticks at most,
// and try out kLoopsTriedMax loops at most.
constexpr uint64_t kTrailingTicksMax = 16;
constexpr uint64_t kLoopSearchTicks = uint64_t{1} << 16;
constexpr int kLoopsTriedMax = 16;
// A program of which this many periods were followed and none was exactly the one that was learned
// may have changed. A search for what it repeats now takes kPeriodsLookedAt periods.
constexpr uint64_t kPeriodsWithoutCopyMax = 4;
constexpr uint64_t kPeriodsLookedAt = 3;

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

LearnerSummary Learner::summary() const {
  // The cursor nudges the learner while holding its own lock, so the learner never calls the cursor
  // with mutex_ held.
  const Following following = cursor_.following();
  MutexLock lock(mutex_);
  LearnerSummary summary = summary_;
  summary.following = following;
  if (stored_ != nullptr) summary.stored_ticks = stored_->digests.size();
  for (const Kind& kind : published_) {
    const bool was_followed = kind.number == following.last_period_kind;
    if (summary.learned != nullptr && !was_followed) continue;
    summary.learned =
        was_followed ? kind.plans.plan_for(following.last_period_born_bytes) : kind.learned;
    if (summary.learned == nullptr) summary.learned = kind.learned;
    const bool is_newest = summary.learned == kind.learned;
    summary.stall_free_budget_bytes = is_newest ? kind.stall_free_budget_bytes : 0;
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
  if (look_count_++ == 0 && stored_ != nullptr) {
    add_kind({.place = {}, .is_marked = true, .is_guess = true}, *stored_);
  }
  take_over_extents();
  // Times are taken before events, so that the events of these ops are among those drained next.
  const std::vector<OpTime> op_times =
      parts_.op_timer != nullptr ? parts_.op_timer->take_finished() : std::vector<OpTime>();
  ticks_.append(recorder_.drain(&positions_));
  ticks_.append_times(op_times);
  {
    MutexLock lock(mutex_);
    summary_.events_lost = ticks_.lost_count();
  }
  const Following following = cursor_.following();
  has_new_period_ |= following.periods_ever != periods_seen_;
  Kind* followed = count_periods(following);
  // Only whole periods count: parts of one kind may look like parts of another, still unknown one.
  const bool has_periods = followed != nullptr && following.periods > 0;
  if (has_periods && followed->is_stored) plan_again(followed->number);
  // A stored kind that is followed and not copied exactly hides what this run repeats. So does one
  // of this run, if the program has changed a little.
  const bool is_followed = has_periods && !followed->is_stored;
  is_doubted_ = is_followed && is_overdue(*followed);
  if (is_followed && !is_doubted_) {
    note_no_guess();
    repeats_from_ = ticks_.end();
    next_search_at_ = repeats_from_ + kFirstSearchTicks;
    // A followed kind may also be only a part of what the marks enclose, or not begin at a mark
    // yet.
    const std::optional<PeriodPlace> segment = last_segment(ticks_);
    const bool has_begin = followed->is_marked || !followed->is_guess;
    if (segment && has_begin && followed->learned->tick_count() >= segment->length) {
      mark_seen_ = ticks_.marks().back();
    } else {
      look_at_marks();
    }
    plan_again(following.last_period_kind);
    return;
  }
  if (is_doubted_) plan_again(following.last_period_kind);
  look_at_marks();
  look_for_repeats();
}

// Whether no copy of a followed kind was exact for so long that the program may by now repeat
// something else. A program whose steps always differ a little is looked at ever more rarely, each
// time for as many periods as it takes to see a repetition.
bool Learner::is_overdue(const Kind& kind) {
  const uint64_t periods = kind.periods - kind.periods_at_copy;
  return periods >= kPeriodsWithoutCopyMax && periods - std::bit_floor(periods) < kPeriodsLookedAt;
}

// Takes over the extents that the cursor has found for a stored period. With these the period is as
// good as one that was seen in this run.
void Learner::take_over_extents() {
  for (Kind& kind : kinds_) {
    if (!kind.learned->period->has_unknown_extents()) continue;
    std::vector<uint64_t> found = cursor_.found_extents(kind.number);
    if (found.empty() || found == kind.learned->period->extent_ids) continue;
    auto period = std::make_shared<Period>(*kind.learned->period);
    period->extent_ids = std::move(found);
    auto learned = std::make_shared<LearnedPlan>(*kind.learned);
    learned->period = std::move(period);
    kind.learned = learned;
    kind.plans = LearnedKind(std::move(learned));
  }
}

void Learner::look_at_marks() {
  if (ticks_.marks().empty() || ticks_.marks().back() == mark_seen_) return;
  mark_seen_ = ticks_.marks().back();
  // The first mark shows no whole step. The ticks that were recorded before it show one as soon as
  // they repeat.
  if (ticks_.marks().size() == 1) return;
  repeats_from_ = mark_seen_;
  next_search_at_ = mark_seen_ + kFirstSearchTicks;
  if (const std::optional<PeriodPlace> place = find_marked_period(ticks_)) {
    learn({.place = *place, .is_marked = true});
  } else if (const std::optional<PeriodPlace> segment = last_segment(ticks_)) {
    learn_segment(*segment);
  }
}

void Learner::look_for_repeats() {
  if (ticks_.end() == ticks_.begin()) return;
  const std::optional<PeriodPlace> segment = last_segment(ticks_);
  const uint64_t ticks = segment ? segment->length : 0;
  next_search_at_ = std::max(next_search_at_, mark_seen_ + kSegmentsBeforeSearch * ticks);
  if (ticks_.end() < next_search_at_) return;
  // Between the first two marks the second step is under way, and a part of it is enough.
  const bool is_second_step = ticks_.marks().size() == 1;
  const uint64_t old_before = std::max(repeats_from_, mark_seen_);
  for (const PeriodPlace& place :
       find_repeats(ticks_, repeats_from_, ticks_.end() - 1, old_before)) {
    if (learn({.place = place, .is_guess = is_second_step, .is_second_step = is_second_step})) {
      break;
    }
  }
  const uint64_t looked_at = ticks_.end() - std::max(ticks_.begin(), repeats_from_);
  const uint64_t part = is_second_step ? kSearchPartInSecondStep : kSearchPart;
  next_search_at_ = ticks_.end() + std::max(kFirstSearchTicks, looked_at / part);
}

// Learns a segment. It is a step of a known kind, perhaps with something between its ops, or it is
// of a new kind.
void Learner::learn_segment(const PeriodPlace& segment) {
  if (Kind* known = kind_at(segment)) {
    confirm(known, segment);
    look_at_size(known, segment);
    return;
  }
  if (begin_at_mark(segment)) return;
  Kind* nearest = nullptr;
  Comparison comparison;
  for (Kind& kind : kinds_) {
    if (!kind.is_marked) continue;
    Comparison other = compare(ticks_, segment, *kind.learned->period);
    if (nearest != nullptr && other.of_period <= comparison.of_period) continue;
    nearest = &kind;
    comparison = std::move(other);
  }
  // Under another budget list ops are cut into other chunks, which come in place of the stored
  // ones.
  const bool is_outdated = comparison.has_replacements && nearest->is_stored;
  if (comparison.of_period >= kSameShare && !comparison.additions.empty() && !is_outdated) {
    for (const PeriodPlace& addition : comparison.additions) learn_addition(addition);
    return;
  }
  const bool is_alike = comparison.of_period >= kBetterShare || comparison.of_segment >= kSameShare;
  if (is_alike && nearest->is_guess) {
    if (std::optional<Period> period = build_period(ticks_, segment, recorder_)) {
      correct(nearest, std::move(*period));
    }
  } else if (!is_alike && is_worth_a_guess(++guesses_in_vain_)) {
    learn({.place = segment, .is_marked = true, .is_guess = true});
  }
}

// A loop that was found in the second step, before that had ended, from now on begins at its mark.
// Where the loop has much of a stored kind, the stored one goes.
bool Learner::begin_at_mark(const PeriodPlace& segment) {
  std::optional<Period> period = build_period(ticks_, segment, recorder_);
  if (!period) return false;
  const auto begins_here = [&period](const Kind& kind) {
    return !kind.is_marked && kind.is_guess && kind.learned->period->has_same_ops(*period);
  };
  if (std::ranges::none_of(kinds_, begins_here)) return false;
  std::erase_if(kinds_, [&](const Kind& kind) {
    return kind.is_stored &&
           compare(ticks_, segment, *kind.learned->period).of_period >= kBetterShare;
  });
  Kind& kind = *std::ranges::find_if(kinds_, begins_here);
  kind.is_marked = true;
  plan_period(&kind, std::move(*period));
  return true;
}

// Ticks that come between the ops of a step are a loop, such as the batches of an evaluation, or
// else are taken as they are.
void Learner::learn_addition(const PeriodPlace& addition) {
  if (is_known_loop(addition)) {
    additions_in_vain_ = 0;
    return;
  }
  uint64_t ticks_left = kLoopSearchTicks;
  int loops_left = kLoopsTriedMax;
  for (uint64_t trailing = 0; trailing < kTrailingTicksMax; ++trailing) {
    const uint64_t end = addition.end() - trailing;
    const uint64_t ticks = std::min(end - addition.begin, kLoopSearchTicks);
    if (ticks > ticks_left) break;
    ticks_left -= ticks;
    for (const PeriodPlace& place : find_repeats(ticks_, end - ticks, end, end - ticks)) {
      if (loops_left-- == 0) return;
      if (learn({.place = place, .is_addition = true})) {
        additions_in_vain_ = 0;
        return;
      }
    }
  }
  learn({.place = addition, .is_guess = true, .is_one_off = true});
}

// Whether the addition ends with a copy of a kind that was learned; if so, notes the copy. An
// evaluation that was learned comes again and again, and need not be searched each time.
bool Learner::is_known_loop(const PeriodPlace& addition) {
  for (Kind& kind : kinds_) {
    const uint64_t length = kind.learned->period->digests.size();
    for (uint64_t trailing = 0; trailing < kTrailingTicksMax; ++trailing) {
      if (length + trailing > addition.length) break;
      const PeriodPlace place = {addition.end() - trailing - length, length};
      if (!is_copy(ticks_, place, *kind.learned->period)) continue;
      confirm(&kind, place);
      look_at_size(&kind, place);
      return true;
    }
  }
  return false;
}

// Returns true when the place holds a period worth planning, including one that is known.
bool Learner::learn(const Candidate& candidate) {
  if (Kind* known = kind_at(candidate.place)) {
    if (!candidate.is_guess) confirm(known, candidate.place);
    look_at_size(known, candidate.place);
    return true;
  }
  std::optional<Period> period = build_period(ticks_, candidate.place, recorder_);
  if (!period) return false;
  // A repetition whose peak is low is not worth a plan, unless steps mark it.
  const uint64_t peak_bytes_min = candidate.is_marked ? 0 : parts_.heap->budget().limit() / 2;
  if (period->trace.peak_bytes() < peak_bytes_min) return false;
  if (is_doubted_ && !came_twice(candidate.place, *period)) return false;
  if (recognise(candidate, *period)) return true;
  if (candidate.is_one_off && !is_worth_a_guess(++additions_in_vain_)) return false;
  add_kind(candidate, std::move(*period));
  return true;
}

// Whether the period is known already, as a whole, as a part, or as a guess that is not as good.
bool Learner::recognise(const Candidate& candidate, const Period& period) {
  const auto is_known = [&period](const Kind& kind) {
    return !kind.is_stored && kind.learned->period->is_same_loop(period);
  };
  if (std::ranges::any_of(kinds_, is_known)) return true;
  // While the second step is under way, each search finds another copy, of which one is enough.
  const auto is_found = [&period](const Kind& kind) {
    return kind.is_guess && kind.learned->period->has_same_ops(period);
  };
  if (candidate.is_second_step && std::ranges::any_of(kinds_, is_found)) return true;
  // A guess may take for always there what it has only never seen end, and so seem to contain the
  // better period.
  for (Kind& kind : kinds_) {
    const Period& known = *kind.learned->period;
    // The guess may also have been made of a step with something else before it.
    const bool is_whole_step = candidate.is_marked && !candidate.is_guess && kind.is_marked;
    const bool is_alike = known.is_like(period) || (kind.is_stored && known.has_same_ops(period)) ||
                          (is_whole_step && !kind.is_stored && known.contains(period));
    if (!kind.is_guess || !is_alike) continue;
    if (candidate.is_guess) {
      correct(&kind, period);
    } else {
      kind.is_guess = false;
      plan_period(&kind, period);
    }
    return true;
  }
  // A loop between the ops of a step may look like a part of the step: an evaluation computes what
  // the forward pass does. Unlike that part it repeats, and needs other tensors next.
  if (candidate.is_addition) return false;
  const auto is_part = [&](const Kind& kind) {
    if (!kind.learned->period->contains(period)) return false;
    // A step that came twice is better than a longer one that comes no more.
    return !candidate.is_marked || !takes_place_of(kind, period);
  };
  return std::ranges::any_of(kinds_, is_part);
}

bool Learner::is_stopping() const {
  MutexLock lock(mutex_);
  return is_stopping_;
}

}  // namespace tencache
