// SPDX-License-Identifier: Apache-2.0
#include "learn/local_search.h"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/sanitizers.h"

namespace tencache {
namespace {

// How many ops are played at most, which takes about a tenth of a second. With a sanitizer so many
// would take two seconds for each plan of a suite. A plan is not changed at all where this is less
// than kPlaysMin plays of it.
constexpr uint64_t kOpsMax = kHasSanitizer ? 30'000 : 300'000;
constexpr uint64_t kPlaysMin = 30;
// The number of moments for which a fetch is tried.
constexpr Tick kMomentsMax = 8;
// Which evictions are delayed: those of tensors with at least this share of the bytes of the tensor
// that the op waits for.
constexpr std::array<double, 3> kLaterShares = {1.0, 0.5, 0.25};
// How many ops after the one that waits a delayed eviction may begin.
constexpr std::array<Tick, 6> kLaterOps = {0, 2, 8, 32, 64, 128};
// A tensor is no longer in the way once more than the period divided by this has passed since it
// left.
constexpr Tick kRecentParts = 4;
// The search that changes several gaps at once: how many gaps it changes, how many plans it keeps
// on the way, and how many ops it plays at most.
constexpr int kChangesMax = 4;
constexpr size_t kFrontMax = 16;
constexpr uint64_t kFrontOpsMax = kOpsMax / 5;

class LocalSearch {
 public:
  LocalSearch(const TraceIndex& index, const Machine& machine, const std::vector<Gap>& gaps,
              Planned* best)
      : index_(index), trace_(index.trace()), machine_(machine), gaps_(gaps), best_(*best) {
    plays_left_ = kOpsMax / trace_.tick_count();
    for (uint32_t index = 0; index < gaps.size(); ++index) {
      by_end_[{gaps[index].tensor, gaps[index].before}] = index;
    }
  }

  void run() {
    if (!best_.simulation.has_stalls() || plays_left_ < kPlaysMin) return;
    leave_later();
    climb();
    plays_left_ = std::min(plays_left_, kFrontOpsMax / trace_.tick_count());
    while (change_several()) climb();
  }

 private:
  /// Plays a plan. Returns nullopt where nothing may be played any more. Where a period does not
  /// end as it began, later ones may take longer, so such a plan gets nullopt, too, if the best one
  /// is steady.
  std::optional<Simulation> play(const Plan& plan) {
    if (plays_left_ == 0) return std::nullopt;
    --plays_left_;
    Simulation simulation = simulate(index_, plan, machine_);
    if (best_.simulation.is_steady && !simulation.is_steady) return std::nullopt;
    return simulation;
  }

  bool keep_better(Plan plan) {
    std::optional<Simulation> simulation = play(plan);
    if (!simulation || !is_better(*simulation, best_.simulation)) return false;
    best_ = {std::move(plan), std::move(*simulation)};
    return true;
  }

  // ---- Evictions that leave later ----

  /// An op that waits until a tensor has left.
  struct Wait {
    Tick tick = 0;
    uint32_t tensor = 0;
    auto operator<=>(const Wait&) const = default;
  };

  void leave_later() {
    std::set<Wait> tried;
    while (plays_left_ > 0) {
      const std::optional<Wait> wait = longest_wait(tried);
      if (!wait) return;
      tried.insert(*wait);
      if (leave_later(*wait)) tried.clear();
    }
  }

  std::optional<Wait> longest_wait(const std::set<Wait>& tried) const {
    const Simulation& simulation = best_.simulation;
    std::map<int64_t, uint32_t> leaving_until;
    for (const Migration& migration : simulation.migrations) {
      if (migration.is_fetch || migration.end_ns == migration.begin_ns) continue;
      leaving_until[migration.end_ns] = migration.tensor;
    }
    std::optional<Wait> longest;
    uint64_t longest_ns = simulation.compute_ns / kStepParts;
    for (Tick tick = 0; tick < trace_.tick_count(); ++tick) {
      if (simulation.stall_ns[tick] <= longest_ns) continue;
      const auto leaving = leaving_until.find(static_cast<int64_t>(simulation.begin_ns[tick]));
      if (leaving == leaving_until.end() || tried.contains({tick, leaving->second})) continue;
      longest = {tick, leaving->second};
      longest_ns = simulation.stall_ns[tick];
    }
    return longest;
  }

  bool leave_later(const Wait& wait) {
    const std::vector<uint32_t> pending = pending_at(wait.tick);
    bool is_improved = false;
    for (const double share : kLaterShares) {
      const double bytes = share * static_cast<double>(trace_.tensors[wait.tensor].bytes);
      for (const Tick ops : kLaterOps) {
        Plan plan = best_.plan;
        if (!delay(pending, static_cast<uint64_t>(bytes), wait.tick, ops, &plan)) continue;
        is_improved |= keep_better(std::move(plan));
      }
    }
    return is_improved;
  }

  /// What has not left yet when the op would begin, if it did not wait.
  std::vector<uint32_t> pending_at(Tick tick) const {
    const Simulation& simulation = best_.simulation;
    const auto arrived_ns =
        static_cast<int64_t>(simulation.begin_ns[tick] - simulation.stall_ns[tick]);
    std::vector<uint32_t> pending;
    for (const Migration& migration : simulation.migrations) {
      if (migration.is_fetch || migration.end_ns <= arrived_ns) continue;
      pending.push_back(migration.tensor);
    }
    std::sort(pending.begin(), pending.end());
    return pending;
  }

  bool delay(const std::vector<uint32_t>& pending, uint64_t least_bytes, Tick tick, Tick ops,
             Plan* plan) const {
    bool is_changed = false;
    for (PlannedMove& move : plan->moves) {
      if (trace_.tensors[move.tensor].bytes < least_bytes) continue;
      if (!std::binary_search(pending.begin(), pending.end(), move.tensor)) continue;
      const auto found = by_end_.find({move.tensor, move.needed_at});
      if (found == by_end_.end()) continue;
      const Gap& gap = gaps_[found->second];
      const Tick end = gap.comes_back() ? move.fetch_at : gap.until;
      const Tick length = trace_.ticks_from(gap.after, end);
      const Tick since = trace_.ticks_from(gap.after, tick);
      const Tick since_eviction = trace_.ticks_from(move.evict_after, tick);
      if (since >= length || since_eviction > trace_.tick_count() / kRecentParts) continue;
      const Tick later = std::min(since + ops, length - 1);
      if (later <= trace_.ticks_from(gap.after, move.evict_after)) continue;
      move.evict_after = (gap.after + later) % trace_.tick_count();
      is_changed = true;
    }
    return is_changed;
  }

  // ---- Each gap ----

  void climb() {
    while (try_each_gap()) {
    }
  }

  bool can_try_each_gap() const { return plays_left_ >= gaps_.size() * kMomentsMax; }

  /// Tries each gap, and the copies to disk. Returns whether there is a new best. Tries nothing
  /// where plays are left for only some of the gaps.
  bool try_each_gap() {
    if (!can_try_each_gap()) return false;
    bool is_improved = false;
    for (const Gap& gap : gaps_) {
      for (Plan& plan : variants(best_.plan, gap)) is_improved |= keep_better(std::move(plan));
    }
    for (Plan& plan : copy_variants(best_.plan)) is_improved |= keep_better(std::move(plan));
    return is_improved;
  }

  /// The plan without the gap, if the plan uses the gap, and the plan with each moment for the
  /// gap's fetch. With the gap, its tensor leaves first of those that leave after the same op.
  std::vector<Plan> variants(const Plan& plan, const Gap& gap) const {
    Plan without = plan;
    const bool is_used = std::erase_if(without.moves, [&](const PlannedMove& move) {
                           return move.tensor == gap.tensor && move.needed_at == gap.before;
                         }) > 0;
    std::vector<Plan> variants;
    if (is_used) variants.push_back(without);
    PlannedMove move{gap.tensor, gap.after, kNoTick, gap.before};
    if (!gap.comes_back()) {
      variants.push_back(with(without, move));
      return variants;
    }
    const Tick length = trace_.ticks_from(gap.after + 1, gap.before) + 1;
    const Tick distance = (length + kMomentsMax - 1) / kMomentsMax;
    for (Tick ahead = 0; ahead < length; ahead += distance) {
      move.fetch_at = (gap.before + trace_.tick_count() - ahead) % trace_.tick_count();
      variants.push_back(with(without, move));
    }
    return variants;
  }

  static Plan with(Plan plan, const PlannedMove& move) {
    plan.moves.insert(plan.moves.begin(), move);
    return plan;
  }

  /// The plan with no copies to disk ahead of need, and with as many as there could be.
  std::vector<Plan> copy_variants(const Plan& plan) const {
    std::vector<Plan> variants;
    if (machine_.host_bytes == 0) return variants;
    for (const uint64_t bytes : {uint64_t{0}, trace_.peak_bytes()}) {
      variants.push_back(plan);
      variants.back().copy_ahead_bytes = bytes;
    }
    return variants;
  }

  // ---- Several gaps at once ----

  /// What tells plans apart here. Only the first plan with the same figures is kept.
  using Figures = std::array<uint64_t, 7>;

  static Figures figures_of(const Simulation& simulation) {
    return {simulation.over_budget_bytes, simulation.step_ns,       simulation.bytes_late,
            simulation.bytes_read,        simulation.bytes_written, simulation.disk_bytes_read,
            simulation.disk_bytes_written};
  }

  /// Changes up to kChangesMax gaps at once. Returns whether there is a new best.
  bool change_several() {
    if (!can_try_each_gap()) return false;
    std::vector<Planned> front = {best_};
    std::set<Figures> seen = {figures_of(best_.simulation)};
    for (int changes = 0; changes < kChangesMax && !front.empty(); ++changes) {
      front = best_neighbours(front, &seen);
      if (front.empty() || !is_better(front.front().simulation, best_.simulation)) continue;
      best_ = std::move(front.front());
      return true;
    }
    return false;
  }

  /// The best kFrontMax of all plans that are one change away, the best one first.
  std::vector<Planned> best_neighbours(const std::vector<Planned>& front, std::set<Figures>* seen) {
    std::vector<Planned> best;
    for (const Planned& planned : front) {
      for (const Gap& gap : gaps_) add_unseen(variants(planned.plan, gap), seen, &best);
      add_unseen(copy_variants(planned.plan), seen, &best);
    }
    return best;
  }

  void add_unseen(std::vector<Plan> plans, std::set<Figures>* seen, std::vector<Planned>* best) {
    for (Plan& plan : plans) {
      std::optional<Simulation> simulation = play(plan);
      if (!simulation || !seen->insert(figures_of(*simulation)).second) continue;
      const auto place = std::find_if(best->begin(), best->end(), [&](const Planned& other) {
        return is_better(*simulation, other.simulation);
      });
      best->insert(place, {std::move(plan), std::move(*simulation)});
      if (best->size() > kFrontMax) best->pop_back();
    }
  }

  const TraceIndex& index_;
  const Trace& trace_;
  const Machine& machine_;
  const std::vector<Gap>& gaps_;
  Planned& best_;
  std::map<std::pair<uint32_t, Tick>, uint32_t> by_end_;  // gaps
  uint64_t plays_left_ = 0;
};

}  // namespace

void improve_moves(const TraceIndex& index, const Machine& machine, const std::vector<Gap>& gaps,
                   Planned* best) {
  LocalSearch(index, machine, gaps, best).run();
}

}  // namespace tencache
