// SPDX-License-Identifier: Apache-2.0
#include "learn/local_search.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tencache {
namespace {

// How many ops are played at most, which is some tenth of a second. A plan is not changed at all
// where this is less than kPlaysMin plays of it.
constexpr uint64_t kOpsMax = 300'000;
constexpr uint64_t kPlaysMin = 30;
// For how many moments a fetch is tried.
constexpr Tick kMomentsMax = 8;
// What leaves later: that share of what the op waits for, and all that is larger.
constexpr std::array<double, 3> kLaterShares = {1.0, 0.5, 0.25};
// How many ops later than the one that waits.
constexpr std::array<Tick, 6> kLaterOps = {0, 2, 8, 32, 64, 128};
// What has left longer ago than this part of the period is not in the way any more.
constexpr Tick kRecentParts = 4;

class LocalSearch {
 public:
  LocalSearch(const Trace& trace, const Machine& machine, const std::vector<Gap>& gaps,
              Planned* best)
      : trace_(trace), machine_(machine), gaps_(gaps), best_(*best) {
    plays_left_ = kOpsMax / trace.tick_count();
    for (uint32_t index = 0; index < gaps.size(); ++index) {
      by_end_[{gaps[index].tensor, gaps[index].before}] = index;
    }
  }

  void run() {
    const Simulation& simulation = best_.simulation;
    const bool waits = simulation.total_stall_ns() > simulation.compute_ns / kStepParts;
    if (!waits || plays_left_ < kPlaysMin) return;
    leave_later();
    while (try_each_gap()) {
    }
  }

 private:
  Tick after(Tick begin, Tick end) const {
    return (end + trace_.tick_count() - begin) % trace_.tick_count();
  }

  bool keep_better(Plan plan) {
    if (plays_left_ == 0) return false;
    --plays_left_;
    Simulation simulation = simulate(trace_, plan, machine_);
    if (!is_better(simulation, best_.simulation)) return false;
    best_ = {std::move(plan), std::move(simulation)};
    return true;
  }

  // ---- Evictions that leave later ----

  /// An op that waits until a tensor has left.
  struct Wait {
    Tick tick = 0;
    uint32_t tensor = 0;
    bool operator<(const Wait& other) const {
      return std::pair(tick, tensor) < std::pair(other.tick, other.tensor);
    }
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
      const Tick length = after(gap.after, end);
      const Tick since = after(gap.after, tick);
      if (since >= length || after(move.evict_after, tick) > trace_.tick_count() / kRecentParts) {
        continue;
      }
      const Tick later = std::min(since + ops, length - 1);
      if (later <= after(gap.after, move.evict_after)) continue;
      move.evict_after = (gap.after + later) % trace_.tick_count();
      is_changed = true;
    }
    return is_changed;
  }

  // ---- Each gap ----

  /// Whether there is a new best. False, too, where not all of them could be tried.
  bool try_each_gap() {
    if (plays_left_ < gaps_.size() * kMomentsMax) return false;
    bool is_improved = false;
    for (const Gap& gap : gaps_) is_improved |= try_gap(gap);
    return try_copies_ahead() || is_improved;
  }

  // None, and as many as there could be.
  bool try_copies_ahead() {
    if (machine_.host_bytes == 0) return false;
    bool is_improved = false;
    for (const uint64_t bytes : {uint64_t{0}, machine_.host_bytes}) {
      Plan plan = best_.plan;
      plan.copy_ahead_bytes = bytes;
      is_improved |= keep_better(std::move(plan));
    }
    return is_improved;
  }

  bool try_gap(const Gap& gap) {
    Plan without = best_.plan;
    const bool is_used = std::erase_if(without.moves, [&](const PlannedMove& move) {
                           return move.tensor == gap.tensor && move.needed_at == gap.before;
                         }) > 0;
    bool is_improved = is_used && keep_better(without);
    PlannedMove move{gap.tensor, gap.after, kNoTick, gap.before};
    if (!gap.comes_back()) return keep_better(with(without, move)) || is_improved;
    const Tick length =
        after(gap.after, gap.before) == 0 ? trace_.tick_count() : after(gap.after, gap.before);
    const Tick distance = (length + kMomentsMax - 1) / kMomentsMax;
    for (Tick ahead = 0; ahead < length; ahead += distance) {
      move.fetch_at = (gap.before + trace_.tick_count() - ahead) % trace_.tick_count();
      is_improved |= keep_better(with(without, move));
    }
    return is_improved;
  }

  static Plan with(Plan plan, const PlannedMove& move) {
    plan.moves.push_back(move);
    return plan;
  }

  const Trace& trace_;
  const Machine& machine_;
  const std::vector<Gap>& gaps_;
  Planned& best_;
  std::map<std::pair<uint32_t, Tick>, uint32_t> by_end_;  // gaps
  uint64_t plays_left_ = 0;
};

}  // namespace

void improve_moves(const Trace& trace, const Machine& machine, const std::vector<Gap>& gaps,
                   Planned* best) {
  LocalSearch(trace, machine, gaps, best).run();
}

}  // namespace tencache
