// SPDX-License-Identifier: Apache-2.0
//
// Learner: reads what the recorder saw, finds what repeats, and makes plans for it. It owns the
// library of plans, for each kind of period (training step, evaluation step, prefill, decode), and
// gives it to the cursor to follow. A kind is planned as soon as one whole copy of it was seen,
// which need not begin at a mark. Such a plan is a guess until a second copy confirms it, or takes
// its place. After guesses in vain, fewer and fewer steps are planned. A long sequence of other
// ticks within a step, like an evaluation, is a kind of its own. A step with other sizes of what is
// allocated anew is of the same kind. If the sizes differ much from those that are planned, the
// kind gets another plan. A kind that was followed for some periods is planned again with newer
// measurements, at ever longer intervals. After that, where planning is quick and the run is not
// short, the learner works out the budget with which the kind would hardly wait.
//
// A stored period, of an earlier run, is a kind from the start. Its plan is a guess, too. The
// cursor finds its extents; from then on the learner recognises copies of it. The stored period may
// differ in some ops from what this run does: the program has another version, or another budget
// cuts list ops elsewhere. So the learner goes on looking while the stored period is followed,
// until a copy of this run has taken its place. The learner does so, too, where a kind of this run
// was followed for some periods without an exact copy: the cursor passes over ticks that differ,
// and the program may have changed for good.
//
// A failure to learn or to plan leaves the engine reactive.
//
// Threads: one worker does everything, so that planning delays no step; any thread calls nudge()
// and summary(). mutex_ guards what both sides see; it is held only while values are assigned, and
// nothing else is called meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/parts.h"
#include "engine/plan/learned_plan.h"
#include "engine/plan/plan_cursor.h"
#include "learn/period_search.h"
#include "learn/recorder.h"
#include "learn/tick_log.h"

namespace tencache {

/// The figures for statistics.
struct LearnerSummary {
  uint64_t kinds = 0;        // in the library; each has a plan, or several for different sizes
  uint64_t replans = 0;      // plans for a kind that already had one
  uint64_t dropped = 0;      // kinds that made room for others
  uint64_t passed_over = 0;  // steps and additions that were not planned: those before were in vain
  uint64_t events_lost = 0;  // overwritten in the recorder's rings before they were read
  uint64_t planning_ns = 0;  // of processor time
  uint64_t stored_ticks = 0;  // of the stored period; 0: there is none
  Following following;
  /// The plan of the period that was followed last, for its sizes, or else the first that was
  /// learned. It is null when there is none.
  std::shared_ptr<const LearnedPlan> learned;
  /// The smallest known budget with which that plan's period would hardly wait, even with slower
  /// links, headroom included. The figure is 0 if this budget is not known.
  uint64_t stall_free_budget_bytes = 0;
};

class Learner {
 public:
  /// `stored` is followed from the first step. It is null when there is none.
  Learner(const Parts& parts, std::shared_ptr<const Period> stored)
      : parts_(parts),
        recorder_(*parts.recorder),
        cursor_(*parts.cursor),
        stored_(std::move(stored)) {}
  ~Learner();

  void start();
  /// Call when there is something to look at: there is a stored period, a step ended, a ring fills,
  /// or a period was followed.
  void nudge();

  LearnerSummary summary() const TENCACHE_EXCLUDES(mutex_);

 private:
  /// The sizes of one copy.
  struct SizesSeen {
    uint64_t allocated_bytes = 0;
    uint64_t born_bytes = 0;  // of the period that was built from it
  };
  struct Kind {
    uint64_t number = 0;
    std::shared_ptr<const LearnedPlan> learned;  // the newest plan
    LearnedKind plans;                           // for several sizes
    bool is_marked = false;                      // it was found between marks
    bool is_guess = false;                 // made from one copy, and no second one has confirmed it
    bool is_stored = false;                // of an earlier run; no copy has taken its place yet
    uint64_t others_seen = 0;              // copies that differed from the guess
    uint64_t further_sizes = 0;            // copies of a size for which there was no room
    uint64_t periods = 0;                  // how many whole ones were followed
    uint64_t periods_planned_at = 0;       // `periods` when it was last planned
    uint64_t periods_at_copy = 0;          // `periods` when the log last had an exact copy
    uint64_t used_at = 0;                  // the last look that found it followed
    uint64_t stall_free_budget_bytes = 0;  // for the sizes of `learned`; 0: not known
    std::vector<SizesSeen> sizes_seen;     // no two of similar allocated_bytes

    /// The plan for a copy that allocated so much, if such a copy was looked at before.
    std::shared_ptr<const LearnedPlan> plan_where_allocated(uint64_t bytes) const;
    void note_sizes(uint64_t allocated_bytes, uint64_t born_bytes);
  };
  /// A part of the log that may be a period.
  struct Candidate {
    PeriodPlace place;
    bool is_marked = false;
    bool is_guess = false;
    bool is_addition = false;     // between ops of a step
    bool is_one_off = false;      // an addition that seems to be no loop
    bool is_second_step = false;  // found before the second step has ended
  };

  void work();
  Kind* count_periods(const Following& following);
  void look();
  static bool is_overdue(const Kind& kind);
  bool came_twice(const PeriodPlace& place, const Period& period) const;
  bool takes_place_of(const Kind& kind, const Period& period) const;
  void take_over_extents();
  void look_at_marks();
  void look_for_repeats();
  void learn_segment(const PeriodPlace& segment);
  bool begin_at_mark(const PeriodPlace& segment);
  void learn_addition(const PeriodPlace& addition);
  bool is_known_loop(const PeriodPlace& addition);
  bool learn(const Candidate& candidate);
  bool recognise(const Candidate& candidate, const Period& period);
  void add_kind(const Candidate& candidate, Period period);
  Kind* kind_at(const PeriodPlace& place);
  void confirm(Kind* kind, const PeriodPlace& place);
  void correct(Kind* kind, Period period);
  bool is_worth_a_guess(uint64_t count);
  void note_no_guess();
  void plan_again(uint64_t number);
  bool look_at_size(Kind* kind, const PeriodPlace& place);
  bool renew(Kind* kind, const PeriodPlace& place);
  bool is_for_another_budget(const LearnedPlan& learned) const;
  void plan_period(Kind* kind, Period period);
  void find_stall_free_budget(Kind& kind);
  bool is_stopping() const TENCACHE_EXCLUDES(mutex_);
  bool is_full() const;
  void drop_least_used();

  const Parts& parts_;
  const Recorder& recorder_;
  PlanCursor& cursor_;
  const std::shared_ptr<const Period> stored_;

  // Only the worker uses these.
  std::vector<uint64_t> positions_;  // in the recorder's rings
  TickLog ticks_;
  uint64_t mark_seen_ = 0;       // the last mark that was looked at
  uint64_t repeats_from_ = 0;    // where the search for repetitions begins
  uint64_t next_search_at_ = 0;  // the tick from which another search is worthwhile
  std::vector<Kind> kinds_;
  uint64_t next_number_ = 1;
  uint64_t look_count_ = 0;
  uint64_t periods_seen_ = 0;     // whole periods of all kinds
  bool is_doubted_ = false;       // a kind is followed; this look asks whether it should still be
  bool has_new_period_ = false;   // that was not looked at yet
  uint64_t looked_at_until_ = 0;  // the end of the period that was looked at last
  uint64_t dropped_ = 0;
  // New kinds that were marked and seemed unlike all others, since one was followed or confirmed.
  // Nothing resets the count while the library is full.
  uint64_t guesses_in_vain_ = 0;
  uint64_t additions_in_vain_ = 0;  // new ones that seemed to be no loop, since the last loop

  std::atomic<bool> is_nudged_{false};
  mutable Mutex mutex_;
  CondVar nudged_;
  bool is_stopping_ TENCACHE_GUARDED_BY(mutex_) = false;
  LearnerSummary summary_ TENCACHE_GUARDED_BY(mutex_);       // but for what belongs to one kind
  std::vector<Kind> published_ TENCACHE_GUARDED_BY(mutex_);  // kinds_, as summary() sees them
  std::thread worker_;
};

}  // namespace tencache
