// SPDX-License-Identifier: Apache-2.0
#include "learn/planner.h"

#include <algorithm>
#include <array>
#include <queue>
#include <utility>
#include <vector>

#include "learn/bin_timeline.h"
#include "learn/excess_bytes.h"
#include "learn/link_time.h"

namespace tencache {
namespace {

// Fetches are scheduled as if each took this many times as long, where there is room. Then a link
// that is slower for a while makes none of them late. Of equals the first is kept, because reality
// is less punctual than a simulation.
constexpr std::array<double, 3> kLeads = {4.0, 2.0, 1.0};
// How often a plan is made anew, with the times that the previous one really takes.
constexpr int kTimedRounds = 2;
// Steps are compared in units of this part of the computing time.
constexpr uint64_t kStepParts = 1024;
constexpr int kFeedbackRounds = 3;

/// Chooses gaps. It keeps how far each bin is over the budget, and the time of the links.
class Selection {
 public:
  Selection(const Trace& trace, const Machine& machine, const BinTimeline& timeline,
            const std::vector<Gap>& gaps)
      : trace_(trace),
        machine_(machine),
        timeline_(timeline),
        gaps_(gaps),
        excess_(timeline, trace, machine.budget_bytes),
        read_link_(timeline),
        write_link_(timeline) {
    chosen_.assign(gaps_.size(), false);
    away_.resize(gaps_.size());
  }

  /// First what the links can hide, then whatever removes most excess for its cost.
  std::vector<Gap> choose() {
    choose_by_value(true);
    choose_by_value(false);
    give_up_needless();
    std::vector<Gap> result;
    for (size_t index = 0; index < gaps_.size(); ++index) {
      if (chosen_[index]) result.push_back(gaps_[index]);
    }
    return result;
  }

 private:
  /// The bins in which the tensor is away, and what its moves take.
  struct Candidate {
    BinTimeline::Range away;
    uint64_t write_ns = 0;
    uint64_t read_ns = 0;
    uint64_t work_ns = 0;
    double value = 0;
  };
  struct Entry {
    double value;
    uint32_t gap;
    bool operator<(const Entry& other) const { return value < other.value; }
  };

  LinkTime& link_for_writes() { return machine_.is_half_duplex ? read_link_ : write_link_; }

  // Values only fall while other gaps are chosen. So a gap that still has the largest value after
  // it was worked out anew has the largest of all.
  void choose_by_value(bool only_hidden) {
    std::priority_queue<Entry> queue;
    for (uint32_t index = 0; index < gaps_.size(); ++index) {
      if (chosen_[index]) continue;
      const double value = evaluate(gaps_[index], only_hidden).value;
      if (value > 0) queue.push({value, index});
    }
    while (!queue.empty() && !excess_.is_zero()) {
      const Entry top = queue.top();
      queue.pop();
      const Candidate candidate = evaluate(gaps_[top.gap], only_hidden);
      if (candidate.value <= 0) continue;
      if (!queue.empty() && candidate.value < queue.top().value) {
        queue.push({candidate.value, top.gap});
        continue;
      }
      take(top.gap, candidate);
    }
  }

  Candidate evaluate(const Gap& gap, bool only_hidden) {
    const uint64_t bytes = trace_.tensors[gap.tensor].bytes;
    const BinTimeline::Range idle = timeline_.inside(gap);
    Candidate candidate;
    candidate.write_ns = gap.was_written ? machine_.write_ns(bytes) : 0;
    candidate.read_ns = gap.comes_back() ? machine_.read_ns(bytes) : 0;
    candidate.work_ns =
        machine_.work_ns(gap.comes_back() ? bytes : 0, gap.was_written ? bytes : 0, bytes);
    candidate.away = idle;
    if (only_hidden && !shrink_to_hidden(&candidate)) return candidate;
    candidate.value =
        excess_.benefit(candidate.away, bytes) /
        static_cast<double>(candidate.write_ns + candidate.read_ns + candidate.work_ns + 1);
    return candidate;
  }

  // Takes off the bins in which the tensor is still leaving or already coming back. False when the
  // links do not have the time.
  bool shrink_to_hidden(Candidate* candidate) {
    BinTimeline::Range& away = candidate->away;
    if (away.count == 0) return false;
    if (candidate->write_ns > 0) {
      const auto leaving = link_for_writes().bins_forward(away, candidate->write_ns);
      if (!leaving || *leaving >= away.count) return false;
      away.first = (away.first + *leaving) % timeline_.count();
      away.count -= *leaving;
    }
    if (candidate->read_ns > 0) {
      const auto coming = read_link_.bins_backward(away, candidate->read_ns);
      if (!coming || *coming >= away.count) return false;
      away.count -= *coming;
    }
    return true;
  }

  void take(uint32_t index, const Candidate& candidate) {
    const Gap& gap = gaps_[index];
    chosen_[index] = true;
    away_[index] = candidate.away;
    excess_.take(candidate.away, trace_.tensors[gap.tensor].bytes);
    const BinTimeline::Range idle = timeline_.inside(gap);
    link_for_writes().take_forward(idle, candidate.write_ns);
    read_link_.take_backward(idle, candidate.read_ns);
  }

  // A later choice may have made an earlier one needless. Short gaps are given up first: they free
  // their room for the least time.
  void give_up_needless() {
    std::vector<uint64_t> used = timeline_.maxima(trace_.bytes_by_tick());
    std::vector<uint32_t> chosen;
    for (uint32_t index = 0; index < gaps_.size(); ++index) {
      if (!chosen_[index]) continue;
      chosen.push_back(index);
      const uint64_t bytes = trace_.tensors[gaps_[index].tensor].bytes;
      timeline_.for_each(away_[index], [&](uint32_t bin) { used[bin] -= bytes; });
    }
    std::stable_sort(chosen.begin(), chosen.end(), [&](uint32_t left, uint32_t right) {
      return away_[left].count < away_[right].count;
    });
    for (const uint32_t index : chosen) {
      const uint64_t bytes = trace_.tensors[gaps_[index].tensor].bytes;
      bool is_needless = true;
      timeline_.for_each(away_[index], [&](uint32_t bin) {
        is_needless &= used[bin] + bytes <= machine_.budget_bytes;
      });
      if (!is_needless) continue;
      chosen_[index] = false;
      timeline_.for_each(away_[index], [&](uint32_t bin) { used[bin] += bytes; });
    }
  }

  const Trace& trace_;
  const Machine& machine_;
  const BinTimeline& timeline_;
  const std::vector<Gap>& gaps_;
  ExcessBytes excess_;
  std::vector<bool> chosen_;
  std::vector<BinTimeline::Range> away_;  // of chosen gaps: where their room counts as free
  LinkTime read_link_;
  LinkTime write_link_;
};

/// Gives every chosen gap the op at which its fetch may start.
class FetchSchedule {
 public:
  FetchSchedule(const Trace& trace, const Machine& machine, const BinTimeline& timeline,
                std::vector<Gap> chosen)
      : trace_(trace), machine_(machine), timeline_(timeline), chosen_(std::move(chosen)) {
    leads_.assign(chosen_.size(), 1.0);
    // From the last deadline backwards, so that each fetch takes the latest time that is left.
    std::stable_sort(chosen_.begin(), chosen_.end(), [](const auto& left, const auto& right) {
      return left.before > right.before;
    });
    used_ = timeline_.maxima(trace_.bytes_by_tick());
    for (const Gap& gap : chosen_) {
      const uint64_t bytes = trace_.tensors[gap.tensor].bytes;
      timeline_.for_each(timeline_.inside(gap), [&](uint32_t bin) { used_[bin] -= bytes; });
    }
  }

  Plan make(double lead) const {
    std::vector<uint64_t> used = used_;
    LinkTime link(timeline_);
    Plan plan;
    plan.moves.reserve(chosen_.size());
    for (size_t index = 0; index < chosen_.size(); ++index) {
      const Gap& gap = chosen_[index];
      PlannedMove move{gap.tensor, gap.after, kNoTick, gap.before};
      if (gap.comes_back()) move.fetch_at = place(gap, lead * leads_[index], &used, &link);
      plan.moves.push_back(move);
    }
    return plan;
  }

  /// Lets fetches that an op waited for start earlier. False when none was late.
  bool learn(const Simulation& simulation) {
    bool was_late = false;
    for (size_t index = 0; index < chosen_.size(); ++index) {
      const Gap& gap = chosen_[index];
      if (!gap.comes_back() || simulation.stall_ns[gap.before] == 0) continue;
      leads_[index] *= 2;
      was_late = true;
    }
    return was_late;
  }

 private:
  // Walks back from the deadline as far as the link needs, never into a bin without room.
  Tick place(const Gap& gap, double lead, std::vector<uint64_t>* used, LinkTime* link) const {
    const uint64_t bytes = trace_.tensors[gap.tensor].bytes;
    const BinTimeline::Range idle = timeline_.inside(gap);
    if (idle.count == 0) return gap.before;
    const auto read_ns = static_cast<uint64_t>(lead * static_cast<double>(machine_.read_ns(bytes)));
    const uint32_t bins = link->bins_backward(idle, read_ns).value_or(idle.count);
    uint32_t bin = (idle.first + idle.count - 1) % timeline_.count();
    Tick fetch_at = gap.before;
    for (uint32_t walked = 0; walked < bins; ++walked) {
      if ((*used)[bin] + bytes > machine_.budget_bytes) break;
      (*used)[bin] += bytes;
      fetch_at = timeline_.first_tick(bin);
      bin = timeline_.previous(bin);
    }
    link->take_backward(idle, read_ns);
    return fetch_at;
  }

  const Trace& trace_;
  const Machine& machine_;
  const BinTimeline& timeline_;
  std::vector<Gap> chosen_;
  std::vector<double> leads_;
  std::vector<uint64_t> used_;  // by bin, while everything chosen is away
};

bool is_better(const Simulation& left, const Simulation& right) {
  if (left.over_budget_bytes != right.over_budget_bytes) {
    return left.over_budget_bytes < right.over_budget_bytes;
  }
  const uint64_t unit = left.compute_ns / kStepParts + 1;
  if (left.step_ns / unit != right.step_ns / unit) return left.step_ns < right.step_ns;
  if (left.bytes_late != right.bytes_late) return left.bytes_late < right.bytes_late;
  return left.bytes_read + left.bytes_written < right.bytes_read + right.bytes_written;
}

// Returns whether there is a new best.
bool try_schedule(const Trace& trace, const Machine& machine, FetchSchedule schedule, double lead,
                  Planned* best) {
  bool is_improved = false;
  for (int round = 0; round < kFeedbackRounds; ++round) {
    Plan plan = schedule.make(lead);
    Simulation simulation = simulate(trace, plan, machine);
    const bool was_late = schedule.learn(simulation);
    if (is_better(simulation, best->simulation)) {
      *best = {std::move(plan), std::move(simulation)};
      is_improved = true;
    }
    if (!was_late) break;
  }
  return is_improved;
}

// The gaps that an unplanned run used.
std::vector<Gap> gaps_used(std::vector<Gap> gaps, const std::vector<PlannedMove>& moves) {
  std::vector<std::pair<uint32_t, Tick>> used;
  used.reserve(moves.size());
  for (const PlannedMove& move : moves) used.emplace_back(move.tensor, move.evict_after);
  std::sort(used.begin(), used.end());
  std::erase_if(gaps, [&](const Gap& gap) {
    return !std::binary_search(used.begin(), used.end(), std::pair(gap.tensor, gap.after));
  });
  return gaps;
}

/// Makes plans with two choices of gaps: the greedy one, and that of the best so far. Returns
/// whether there is a new best.
bool try_timeline(const Trace& trace, const Machine& machine, const std::vector<Gap>& gaps,
                  const BinTimeline& timeline, Planned* best) {
  const std::array<std::vector<Gap>, 2> choices = {
      Selection(trace, machine, timeline, gaps).choose(), gaps_used(gaps, best->simulation.moves)};
  bool is_improved = false;
  for (const std::vector<Gap>& chosen : choices) {
    for (const double lead : kLeads) {
      is_improved |=
          try_schedule(trace, machine, FetchSchedule(trace, machine, timeline, chosen), lead, best);
    }
  }
  return is_improved;
}

bool has_stalls(const Simulation& simulation) {
  return simulation.total_stall_ns() > simulation.compute_ns / kStepParts;
}

}  // namespace

Planned make_plan(const Trace& trace, const Machine& machine) {
  const Plan by_next_use = {{}, Victim::kFarthestNextUse};
  const Plan by_last_use = {{}, Victim::kLeastRecentlyUsed};
  Planned best = {by_next_use, simulate(trace, by_next_use, machine)};
  if (best.simulation.moves.empty()) return best;  // everything fits
  const std::vector<Gap> gaps = gaps_of(trace);
  try_timeline(trace, machine, gaps, BinTimeline(trace), &best);
  Simulation reactive = simulate(trace, by_last_use, machine);
  if (is_better(reactive, best.simulation)) best = {by_last_use, std::move(reactive)};
  // While the program waits, the links go on and all that follows shifts. Where waiting cannot be
  // helped, a plan for the time that it really takes is better.
  for (int round = 0; round < kTimedRounds && has_stalls(best.simulation); ++round) {
    const BinTimeline timed(trace, best.simulation.stall_ns);
    if (!try_timeline(trace, machine, gaps, timed, &best)) break;
  }
  return best;
}

}  // namespace tencache
