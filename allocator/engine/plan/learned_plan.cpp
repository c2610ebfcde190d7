// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/learned_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "learn/bound.h"
#include "memory/budget.h"

namespace tencache {
namespace {

// Plans of one kind are for sizes that differ by more than this factor.
constexpr double kSimilarSizes = 1.08;

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

}  // namespace

bool are_similar_sizes(uint64_t a, uint64_t b) {
  const auto [less, more] = std::minmax({static_cast<double>(a), static_cast<double>(b)});
  return more <= kSimilarSizes * less;
}

bool are_for_similar_sizes(const LearnedPlan& a, const LearnedPlan& b) {
  return are_similar_sizes(a.period->born_bytes, b.period->born_bytes) &&
         a.period->is_same_kind(*b.period);
}

std::shared_ptr<const LearnedPlan> make_learned_plan(uint64_t number,
                                                     std::shared_ptr<const Period> period,
                                                     const Machine& machine) {
  const Trace& trace = period->trace;
  // Plans leave the headroom alone, but other schedules may use it, so the bounds count it in.
  Machine bound_machine = machine;
  bound_machine.budget_bytes = budget_with_headroom(machine.budget_bytes);
  auto learned = std::make_shared<LearnedPlan>();
  learned->number = number;
  learned->machine = machine;
  learned->planned = make_plan(trace, machine);
  learned->bound_ns = bound_step_ns(trace, bound_machine);
  learned->bound_bytes_read = bound_bytes_read(trace, bound_machine.budget_bytes);
  learned->uses = uses_by_tensor(trace);
  learned->period = std::move(period);
  learned->moves = PlanByTick(learned->planned.plan, learned->tick_count());
  return learned;
}

std::shared_ptr<const LearnedPlan> LearnedKind::plan_for(uint64_t born_bytes) const {
  const auto found = std::ranges::find_if(plans, [born_bytes](const auto& plan) {
    return are_similar_sizes(bytes_of(plan), born_bytes);
  });
  return found != plans.end() ? *found : nullptr;
}

void LearnedKind::take(const std::shared_ptr<const LearnedPlan>& learned) {
  if (!plans.empty() && !period().is_same_kind(*learned->period)) plans.clear();
  std::erase_if(plans, [&learned](const auto& plan) {
    return plan->period->has_unknown_extents() || are_for_similar_sizes(*plan, *learned);
  });
  if (is_full()) drop_nearest(&plans);
  plans.insert(std::ranges::upper_bound(plans, bytes_of(learned), {}, bytes_of), learned);
}

uint64_t LearnedPlan::ticks_to_next_use(uint32_t tensor, Tick position) const {
  const std::vector<Tick>& ticks = uses[tensor];
  const auto later = std::lower_bound(ticks.begin(), ticks.end(), position);
  const Tick next = later == ticks.end() ? ticks.front() : *later;
  const Trace& trace = period->trace;
  const TraceTensor& life = trace.tensors[tensor];
  // The room of a tensor that is not used again in this life is wanted until the tensor is freed.
  // The op before the position may be open still, and free the tensor in a moment.
  if (!life.is_persistent() && next == life.allocated_at) {
    return trace.ticks_from(position, life.freed_at + 1);
  }
  return trace.ticks_from(position, next);
}

}  // namespace tencache
