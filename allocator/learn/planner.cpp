// SPDX-License-Identifier: Apache-2.0
#include "learn/planner.h"

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "learn/bin_room.h"
#include "learn/bin_timeline.h"
#include "learn/bound.h"
#include "learn/early_fetches.h"
#include "learn/gap_choice.h"
#include "learn/link_prices.h"
#include "learn/link_time.h"
#include "learn/local_search.h"
#include "learn/near_fetches.h"
#include "learn/trace_index.h"

namespace tencache {
namespace {

// Where there is room, fetches are scheduled as if each took this many times as long. Then a link
// that is slower for a while makes none of them late. Among equal plans the first is kept: it
// fetches earliest, and a real link is less punctual than a simulated one.
constexpr std::array<double, 3> kLeads = {4.0, 2.0, 1.0};
// The leads where the program waits whatever is planned: then the time to plan matters more.
constexpr std::array<double, 2> kLeadsWithWaits = {4.0, 1.0};
// How far ahead the plans of fetch_near_use() fetch, in shares of the budget.
constexpr std::array<double, 3> kAheadShares = {1.0 / 128, 1.0 / 32, 1.0 / 8};
// The ways to charge writes, each of which is tried.
constexpr std::array<WriteCharge, 2> kCharges = {WriteCharge::kOwnGap, WriteCharge::kChain};
// How much may be copied to disk ahead of need, in shares of what goes there anyway.
constexpr std::array<double, 4> kCopyShares = {0.5, 0.75, 1.0, 1.25};
// How often a schedule is played at most. After each time, fetches that came late start earlier.
constexpr int kFeedbackRounds = 2;
// How often gaps are chosen by the prices of the links' time, and how often in a row in vain.
constexpr int kPricedRounds = 8;
constexpr int kPricedInVain = 2;
// After so many ops, each play counted as one period, no further round is begun. That is some
// seconds; longer periods get fewer rounds.
constexpr uint64_t kOpsPlayedMax = 8'000'000;

/// A schedule of fetches: for every chosen gap the op at which its fetch may start.
class FetchSchedule {
 public:
  FetchSchedule(const Trace& trace, const Machine& machine, const BinTimeline& timeline,
                std::vector<Gap> chosen)
      : machine_(machine),
        timeline_(timeline),
        chosen_(std::move(chosen)),
        leads_(chosen_.size(), 1.0),
        room_(trace, machine.budget_bytes, timeline, chosen_) {
    // Fetches are placed from the last deadline backwards, so that each fetch takes the latest time
    // that is left.
    std::ranges::stable_sort(chosen_, std::ranges::greater{}, &Gap::before);
  }

  Plan make(double lead) const {
    BinRoom room = room_;
    LinkTime link(timeline_);
    Plan plan;
    plan.moves.reserve(chosen_.size());
    for (size_t index = 0; index < chosen_.size(); ++index) {
      const Gap& gap = chosen_[index];
      PlannedMove move{gap.tensor, gap.after, kNoTick, gap.before};
      if (gap.comes_back()) move.fetch_at = place(gap, lead * leads_[index], &room, &link);
      plan.moves.push_back(move);
    }
    return plan;
  }

  /// Lets fetches that an op waited for start earlier. Returns false when none was late.
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
  Tick place(const Gap& gap, double lead, BinRoom* room, LinkTime* link) const {
    const BinTimeline::Range idle = timeline_.inside(gap);
    const auto read_ns =
        static_cast<uint64_t>(lead * static_cast<double>(machine_.read_ns(gap.bytes)));
    const uint32_t bins = link->bins(idle, read_ns, LinkTime::From::kEnd).value_or(idle.count);
    link->take(idle, read_ns, LinkTime::From::kEnd);
    return room->fetch_at(gap, idle, bins);
  }

  const Machine& machine_;
  const BinTimeline& timeline_;
  std::vector<Gap> chosen_;
  std::vector<double> leads_;
  const BinRoom room_;  // while everything chosen is away
};

// The gaps that a played run used, with a plan or without one.
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

/// The search for a plan: it makes plans, plays them, and keeps the best.
class Search {
 public:
  Search(const Trace& trace, const Machine& machine)
      : index_(trace), trace_(trace), machine_(machine) {}

  Planned run() {
    const Plan by_next_use = {{}, Victim::kFarthestNextUse};
    const Plan by_last_use = {{}, Victim::kLeastRecentlyUsed};
    best_ = played(by_next_use);
    if (best_.simulation.moves.empty()) return std::move(best_);  // everything fits
    gaps_ = gaps_of(trace_);
    const BinTimeline without_waits(trace_);
    const Choices choices = choices_on(without_waits, gaps_used(gaps_, best_.simulation.moves));
    search_each_charge(without_waits, choices);
    keep_better(by_last_use);
    if (may_improve()) {
      try_early(without_waits, choices);
      try_copies_ahead();
    }
    if (may_improve()) {
      const BinTimeline timeline(trace_, best_.simulation.stall_ns);
      try_ordered(timeline, choices_on(timeline, choices.belady));
    }
    for (const WriteCharge charge : kCharges) {
      if (may_improve()) try_prices(charge);
    }
    if (may_improve()) improve_moves(index_, machine_, gaps_, &best_);
    return std::move(best_);
  }

 private:
  /// Which gaps to use, by Belady's rule and for each way of charging writes.
  struct Choices {
    std::vector<Gap> belady;
    std::array<std::vector<Gap>, kCharges.size()> by_charge;
  };

  bool has_time() const { return plays_ * trace_.tick_count() < kOpsPlayedMax; }

  // Whether there is time for more, and the program waits, and either exceeds the budget or takes
  // longer than the bound says that it must.
  bool may_improve() {
    if (!has_time()) return false;
    if (!best_.simulation.has_stalls()) return false;
    if (best_.simulation.over_budget_bytes > 0) return true;
    if (bound_ns_ == 0) bound_ns_ = bound_step_ns(trace_, machine_);
    return best_.simulation.step_ns > bound_ns_ + bound_ns_ / kStepParts;
  }

  // Searches with each way to charge writes, apart from the others: the rounds begin with the best
  // plan so far, and what is best without them need not be best after them. Schedules of what the
  // unplanned run used are the same for all.
  void search_each_charge(const BinTimeline& without_waits, const Choices& choices) {
    const Planned unplanned = best_;
    try_leads(without_waits, choices.belady, kLeads);
    const Planned by_belady = std::exchange(best_, unplanned);
    Planned best = unplanned;
    for (size_t index = 0; index < kCharges.size(); ++index) {
      best_ = unplanned;
      try_leads(without_waits, choices.by_charge[index], kLeads);
      if (is_better(by_belady.simulation, best_.simulation)) best_ = by_belady;
      search_with_waits(kCharges[index]);
      if (is_better(best_.simulation, best.simulation)) best = std::move(best_);
    }
    best_ = std::move(best);
  }

  // Tries plans for the time that the program really takes, waits included. While it waits, the
  // links go on and all that follows shifts. Where waiting cannot be helped, such a plan is better.
  void search_with_waits(WriteCharge charge) {
    if (!may_improve()) return;
    const BinTimeline timeline(trace_, best_.simulation.stall_ns);
    const std::vector<Gap> used = gaps_used(gaps_, best_.simulation.moves);
    try_leads(timeline, choose_gaps(trace_, machine_, timeline, gaps_, charge), kLeadsWithWaits);
    try_leads(timeline, used, kLeadsWithWaits);
  }

  void try_leads(const BinTimeline& timeline, const std::vector<Gap>& chosen,
                 std::span<const double> leads) {
    const FetchSchedule schedule(trace_, machine_, timeline, chosen);
    for (const double lead : leads) try_schedule(schedule, lead);
  }

  void try_schedule(FetchSchedule schedule, double lead) {
    for (int round = 0; round < kFeedbackRounds; ++round) {
      Planned planned = played(schedule.make(lead));
      const bool was_late = schedule.learn(planned.simulation);
      if (is_better(planned.simulation, best_.simulation)) best_ = std::move(planned);
      if (!was_late) break;
    }
  }

  Choices choices_on(const BinTimeline& timeline, std::vector<Gap> belady) const {
    Choices choices = {std::move(belady), {}};
    for (size_t index = 0; index < kCharges.size(); ++index) {
      choices.by_charge[index] = choose_gaps(trace_, machine_, timeline, gaps_, kCharges[index]);
    }
    return choices;
  }

  /// Tries plans that fetch in the order of the deadlines, as early as there is room or only a
  /// little ahead.
  void try_ordered(const BinTimeline& timeline, const Choices& choices) {
    try_early(timeline, choices);
    try_near(choices.belady);
    for (const std::vector<Gap>& chosen : choices.by_charge) try_near(chosen);
    try_near(gaps_used(gaps_, best_.simulation.moves));
  }

  void try_early(const BinTimeline& timeline, const Choices& choices) {
    keep_better(early_plan(timeline, choices.belady));
    for (const std::vector<Gap>& chosen : choices.by_charge) {
      keep_better(early_plan(timeline, chosen));
    }
    // The gaps that the best plan so far uses are a choice that knows of the disk.
    keep_better(early_plan(timeline, gaps_used(gaps_, best_.simulation.moves)));
  }

  void try_near(const std::vector<Gap>& chosen) {
    for (const double share : kAheadShares) keep_better(near_plan(chosen, share));
  }

  Plan early_plan(const BinTimeline& timeline, const std::vector<Gap>& chosen) const {
    return fetch_when_room(trace_, machine_.budget_bytes, timeline, chosen);
  }

  Plan near_plan(const std::vector<Gap>& chosen, double share) const {
    const double ahead_bytes = share * static_cast<double>(machine_.budget_bytes);
    return fetch_near_use(trace_, chosen, static_cast<uint64_t>(ahead_bytes));
  }

  // Each round learns the prices from the plan of the round before, be it better or not: a price
  // that was too low shows only once a plan has followed it.
  void try_prices(WriteCharge charge) {
    LinkPrices prices;
    Planned last = best_;
    int in_vain = 0;
    for (int round = 0; round < kPricedRounds && in_vain < kPricedInVain && has_time(); ++round) {
      const BinTimeline timeline(trace_, last.simulation.stall_ns);
      prices.learn(timeline, last.simulation, machine_.is_half_duplex);
      last =
          best_schedule(timeline, choose_gaps(trace_, machine_, timeline, gaps_, charge, prices));
      in_vain = is_better(last.simulation, best_.simulation) ? 0 : in_vain + 1;
      if (in_vain == 0) best_ = last;
    }
  }

  /// The best plan for a choice of gaps, among schedules of each kind.
  Planned best_schedule(const BinTimeline& timeline, const std::vector<Gap>& chosen) {
    const FetchSchedule schedule(trace_, machine_, timeline, chosen);
    Planned best = played(schedule.make(kLeadsWithWaits.front()));
    for (const double lead : std::span(kLeadsWithWaits).subspan(1)) {
      keep_better(schedule.make(lead), &best);
    }
    keep_better(early_plan(timeline, chosen), &best);
    for (const double share : kAheadShares) keep_better(near_plan(chosen, share), &best);
    return best;
  }

  // Tries to copy about as much ahead as goes to disk anyway. More copies would not begin sooner,
  // and some would be needless.
  void try_copies_ahead() {
    const uint64_t disk_bytes = best_.simulation.disk_bytes_written;
    uint64_t best_bytes = 0;
    for (const double share : kCopyShares) {
      if (disk_bytes == 0) return;
      copy_ahead_bytes_ = static_cast<uint64_t>(share * static_cast<double>(disk_bytes));
      if (keep_better(Plan(best_.plan))) best_bytes = copy_ahead_bytes_;
    }
    copy_ahead_bytes_ = best_bytes;
  }

  bool keep_better(Plan plan) { return keep_better(std::move(plan), &best_); }
  bool keep_better(Plan plan, Planned* best) {
    Planned other = played(std::move(plan));
    if (!is_better(other.simulation, best->simulation)) return false;
    *best = std::move(other);
    return true;
  }

  Planned played(Plan plan) {
    ++plays_;
    plan.copy_ahead_bytes = copy_ahead_bytes_;
    Simulation simulation = simulate(index_, plan, machine_);
    return {std::move(plan), std::move(simulation)};
  }

  const TraceIndex index_;
  const Trace& trace_;
  const Machine& machine_;
  std::vector<Gap> gaps_;
  uint64_t plays_ = 0;
  uint64_t copy_ahead_bytes_ = 0;  // of the plans that are made
  uint64_t bound_ns_ = 0;          // of the step; 0: not worked out yet
  Planned best_;
};

}  // namespace

Planned make_plan(const Trace& trace, const Machine& machine) {
  return Search(trace, machine).run();
}

}  // namespace tencache
