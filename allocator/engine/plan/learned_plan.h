// SPDX-License-Identifier: Apache-2.0
//
// LearnedPlan: a period with its plan, in the form in which the cursor follows it. It is immutable
// once made; the learner, which makes it, and the cursor share it.
//
// LearnedKind: the plans of one kind for several sizes of what is allocated anew. A program pads
// each batch to its longest entry, and a cache grows by a token: the ops stay the same, and so do
// the tensors and their numbers. Only the bytes differ, and what has to leave to make room.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "learn/period.h"
#include "learn/planner.h"
#include "learn/tensors_by_tick.h"

namespace tencache {

struct LearnedPlan {
  uint64_t number = 0;  // of the kind of period; a newer plan for it keeps the number
  std::shared_ptr<const Period> period;
  Machine machine;
  Planned planned;
  uint64_t bound_ns = 0;                // no schedule of the period takes less
  uint64_t bound_bytes_read = 0;        // nor reads less
  std::vector<std::vector<Tick>> uses;  // by tensor, ascending
  PlanByTick moves;                     // as the cursor looks them up

  Tick tick_count() const { return period->trace.tick_count(); }
  /// Ticks from `position` to the tensor's next use, or to the end of its life if that comes first.
  uint64_t ticks_to_next_use(uint32_t tensor, Tick position) const;
};

struct LearnedKind {
  static constexpr size_t kSizesMax = 6;

  LearnedKind() = default;
  /// A kind with one plan.
  LearnedKind(std::shared_ptr<const LearnedPlan> plan)  // NOLINT(google-explicit-constructor)
      : plans{std::move(plan)} {}

  uint64_t number() const { return plans.front()->number; }
  const Period& period() const { return *plans.front()->period; }
  /// The plan for sizes like these. Returns null when there is none.
  std::shared_ptr<const LearnedPlan> plan_for(uint64_t born_bytes) const;
  /// Takes in a plan. It replaces a stored one and those for similar sizes. Where the plans are for
  /// another kind of period, which was a worse guess, it replaces all of them. Where there is no
  /// room, it replaces the one whose sizes the next larger plan serves best.
  void take(const std::shared_ptr<const LearnedPlan>& learned);
  bool is_full() const { return plans.size() == kSizesMax; }

  /// All plans are for the same kind of period (Period::is_same_kind), the smallest sizes first.
  /// The list is empty only until the first take().
  std::vector<std::shared_ptr<const LearnedPlan>> plans;
};

/// Whether bytes of two periods differ so little that one plan serves both.
bool are_similar_sizes(uint64_t a, uint64_t b);
/// Whether the plans are for the same kind of period, in sizes so alike that one of them is enough.
bool are_for_similar_sizes(const LearnedPlan& a, const LearnedPlan& b);

/// Plans the period for this machine, which takes time.
std::shared_ptr<const LearnedPlan> make_learned_plan(uint64_t number,
                                                     std::shared_ptr<const Period> period,
                                                     const Machine& machine);

}  // namespace tencache
