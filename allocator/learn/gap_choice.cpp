// SPDX-License-Identifier: Apache-2.0
#include "learn/gap_choice.h"

#include <algorithm>
#include <queue>

#include "learn/excess_bytes.h"
#include "learn/link_time.h"
#include "learn/write_chains.h"

namespace tencache {
namespace {

// A gap looks for its write in at most this many earlier gaps of its chain, so a chosen gap
// concerns at most this many later ones. A weight has two gaps in each micro-batch, so this reaches
// over eight of these.
constexpr int kEarlierMax = 16;

/// A choice of gaps in the making. It keeps how far each bin is over the budget, and the links'
/// time.
class GapChoice {
 public:
  GapChoice(const Trace& trace, const Machine& machine, const BinTimeline& timeline,
            const std::vector<Gap>& gaps, WriteCharge charge, const LinkPrices& prices)
      : trace_(trace),
        machine_(machine),
        timeline_(timeline),
        gaps_(gaps),
        charge_(charge),
        prices_(prices),
        chains_(gaps),
        excess_(timeline, trace, machine.budget_bytes),
        chosen_(gaps.size(), false),
        away_(gaps.size()),
        read_link_(timeline),
        write_link_(timeline) {}

  /// Chooses first what the links can hide, then whatever removes most excess for its cost.
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
  using From = LinkTime::From;

  /// The bins in which the tensor is away, and what its moves take.
  struct Candidate {
    BinTimeline::Range away;
    uint64_t write_ns = 0;
    uint64_t read_ns = 0;
    double cost_ns = 0;  // of the links at their prices, and processor time
    double benefit = 0;

    double value() const { return benefit / (cost_ns + 1); }
  };
  /// A gap, perhaps with an earlier one of its chain, in which its tensor is written.
  struct Pick {
    Candidate own;
    uint32_t earlier = WriteChains::kNone;
    Candidate with;  // of the earlier gap
    double value = 0;
  };
  struct Entry {
    double value;
    uint32_t gap;
    bool operator<(const Entry& other) const { return value < other.value; }
  };
  using Queue = std::priority_queue<Entry>;

  LinkTime& link_for_writes() { return machine_.is_half_duplex ? read_link_ : write_link_; }

  // Chooses the gap of the largest value, again and again. Values fall while other gaps are chosen.
  // So a gap whose value, worked out anew, is still the largest in the queue is the best of all.
  // Only the values of gaps whose write has become free rise; those gaps are queued once more.
  void choose_by_value(bool only_hidden) {
    Queue queue;
    for (uint32_t index = 0; index < gaps_.size(); ++index) queue_up(index, only_hidden, &queue);
    while (!queue.empty() && !excess_.is_zero()) {
      const Entry top = queue.top();
      queue.pop();
      if (chosen_[top.gap]) continue;
      const Pick pick = evaluate(top.gap, only_hidden);
      if (pick.value <= 0) continue;
      if (!queue.empty() && pick.value < queue.top().value) {
        queue.push({pick.value, top.gap});
        continue;
      }
      take(top.gap, pick.own);
      if (pick.earlier != WriteChains::kNone) take(pick.earlier, pick.with);
      if (charge_ == WriteCharge::kChain) queue_up_chain(top.gap, only_hidden, &queue);
    }
  }

  void queue_up(uint32_t index, bool only_hidden, Queue* queue) {
    if (chosen_[index]) return;
    const double value = evaluate(index, only_hidden).value;
    if (value > 0) queue->push({value, index});
  }

  void queue_up_chain(uint32_t taken, bool only_hidden, Queue* queue) {
    uint32_t later = chains_.after(taken);
    for (int walked = 0; later != WriteChains::kNone && walked < kEarlierMax; ++walked) {
      queue_up(later, only_hidden, queue);
      later = chains_.after(later);
    }
  }

  Pick evaluate(uint32_t index, bool only_hidden) {
    const bool is_first = gaps_[index].was_written;
    const bool writes =
        charge_ == WriteCharge::kOwnGap ? is_first : chains_.needs_write(index, chosen_);
    Pick pick;
    pick.own = weigh(index, writes, only_hidden);
    pick.value = pick.own.value();
    if (writes && !is_first) take_along(index, only_hidden, &pick);
    return pick;
  }

  // Looks for the nearest earlier gap of the chain in which the tensor can be written without a
  // wait. With it the gap itself needs no write.
  void take_along(uint32_t index, bool only_hidden, Pick* pick) {
    const Candidate own = weigh(index, false, only_hidden);
    if (own.benefit <= 0) return;
    uint32_t earlier = chains_.before(index);
    for (int walked = 0; earlier != WriteChains::kNone && walked < kEarlierMax; ++walked) {
      const Candidate with = weigh(earlier, true, true);
      if (with.away.count > 0) {
        const double value = (own.benefit + with.benefit) / (own.cost_ns + with.cost_ns + 1);
        if (value > pick->value) *pick = {own, earlier, with, value};
        return;
      }
      earlier = chains_.before(earlier);
    }
  }

  Candidate weigh(uint32_t index, bool writes, bool only_hidden) {
    const Gap& gap = gaps_[index];
    const bool reads = gap.comes_back();
    Candidate candidate;
    candidate.write_ns = writes ? machine_.write_ns(gap.bytes) : 0;
    candidate.read_ns = reads ? machine_.read_ns(gap.bytes) : 0;
    candidate.away = timeline_.inside(gap);
    const uint64_t work_ns =
        machine_.work_ns(reads ? gap.bytes : 0, writes ? gap.bytes : 0, gap.bytes);
    candidate.cost_ns = price_of(candidate) + static_cast<double>(work_ns);
    if (only_hidden && !shrink_to_hidden(&candidate)) {
      candidate.away = {};
      return candidate;
    }
    candidate.benefit = excess_.benefit(candidate.away, gap.bytes);
    return candidate;
  }

  // What the moves cost at the prices of the links. A tensor is written when its gap begins, and
  // read when the gap ends.
  double price_of(const Candidate& candidate) const {
    if (candidate.away.count == 0) return 0;
    const uint32_t first = candidate.away.first;
    const uint32_t last = (first + candidate.away.count - 1) % timeline_.count();
    return static_cast<double>(candidate.write_ns) * prices_.of_writing(first) +
           static_cast<double>(candidate.read_ns) * prices_.of_reading(last);
  }

  // Takes off the bins in which the tensor is still leaving or already coming back. Returns false
  // when the links do not have the time.
  bool shrink_to_hidden(Candidate* candidate) {
    BinTimeline::Range& away = candidate->away;
    if (away.count == 0) return false;
    if (candidate->write_ns > 0) {
      const auto leaving = link_for_writes().bins(away, candidate->write_ns, From::kStart);
      if (!leaving || *leaving >= away.count) return false;
      away.first = (away.first + *leaving) % timeline_.count();
      away.count -= *leaving;
    }
    if (candidate->read_ns > 0) {
      const auto coming = read_link_.bins(away, candidate->read_ns, From::kEnd);
      if (!coming || *coming >= away.count) return false;
      away.count -= *coming;
    }
    return true;
  }

  void take(uint32_t index, const Candidate& candidate) {
    const Gap& gap = gaps_[index];
    chosen_[index] = true;
    away_[index] = candidate.away;
    excess_.take(candidate.away, gap.bytes);
    const BinTimeline::Range idle = timeline_.inside(gap);
    link_for_writes().take(idle, candidate.write_ns, From::kStart);
    read_link_.take(idle, candidate.read_ns, From::kEnd);
  }

  // Gives up the gaps that later choices have made needless, short ones first: they free their room
  // for the least time.
  void give_up_needless() {
    std::vector<uint64_t> used = timeline_.maxima(trace_.bytes_by_tick());
    std::vector<uint32_t> chosen;
    for (uint32_t index = 0; index < gaps_.size(); ++index) {
      if (!chosen_[index]) continue;
      chosen.push_back(index);
      timeline_.for_each(away_[index], [&](uint32_t bin) { used[bin] -= gaps_[index].bytes; });
    }
    std::ranges::stable_sort(chosen, {}, [&](uint32_t index) { return away_[index].count; });
    for (const uint32_t index : chosen) {
      bool is_needless = !writes_for_others(index);
      timeline_.for_each(away_[index], [&](uint32_t bin) {
        is_needless &= used[bin] + gaps_[index].bytes <= machine_.budget_bytes;
      });
      if (!is_needless) continue;
      chosen_[index] = false;
      timeline_.for_each(away_[index], [&](uint32_t bin) { used[bin] += gaps_[index].bytes; });
    }
  }

  // Whether a chosen gap counts on the copy that is made in this one.
  bool writes_for_others(uint32_t index) const {
    return charge_ == WriteCharge::kChain && chains_.needs_write(index, chosen_) &&
           chains_.serves_later(index, chosen_);
  }

  const Trace& trace_;
  const Machine& machine_;
  const BinTimeline& timeline_;
  const std::vector<Gap>& gaps_;
  const WriteCharge charge_;
  const LinkPrices& prices_;
  const WriteChains chains_;
  ExcessBytes excess_;
  std::vector<bool> chosen_;
  std::vector<BinTimeline::Range> away_;  // of chosen gaps: where their room counts as free
  LinkTime read_link_;
  LinkTime write_link_;
};

}  // namespace

std::vector<Gap> choose_gaps(const Trace& trace, const Machine& machine,
                             const BinTimeline& timeline, const std::vector<Gap>& gaps,
                             WriteCharge charge, const LinkPrices& prices) {
  return GapChoice(trace, machine, timeline, gaps, charge, prices).choose();
}

}  // namespace tencache
