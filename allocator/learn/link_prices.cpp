// SPDX-License-Identifier: Apache-2.0
#include "learn/link_prices.h"

#include <algorithm>
#include <cstddef>

namespace tencache {
namespace {

// The period is cut into this many slices of equal time. A link's price grows with the share of the
// slices around in which it is busy, for moves may begin a little earlier or later.
constexpr size_t kSlices = 256;
constexpr size_t kSlicesAround = 4;
// What an idle link costs: bytes that are not moved at all are better still.
constexpr double kIdlePrice = 0.1;
// How much of the way prices move towards those that a simulation shows.
constexpr double kPartOfTheWay = 0.5;

/// How long one link is busy in each slice of a period, as a share of the slice.
class BusyShares {
 public:
  explicit BusyShares(double period_ns)
      : slice_ns_(std::max(period_ns, 1.0) / kSlices), shares_(kSlices, 0) {}

  // Moves may begin before the period and end after it: the period repeats itself.
  void add(const Migration& migration) {
    const double begin = static_cast<double>(migration.begin_ns) / slice_ns_ + kSlices;
    const double end = static_cast<double>(migration.end_ns) / slice_ns_ + kSlices;
    double from = std::max(begin, 0.0);
    while (from < end) {
      const auto slice = static_cast<size_t>(from);
      const double until = std::min(end, static_cast<double>(slice + 1));
      shares_[slice % kSlices] += until - from;
      from = until;
    }
  }

  double around(double time_ns) const {
    const auto middle = static_cast<size_t>(time_ns / slice_ns_);
    double sum = 0;
    for (size_t slice = middle + kSlices - kSlicesAround; slice <= middle + kSlices + kSlicesAround;
         ++slice) {
      sum += std::min(shares_[slice % kSlices], 1.0);
    }
    return sum / (2 * kSlicesAround + 1);
  }

 private:
  const double slice_ns_;
  std::vector<double> shares_;
};

/// Moves the prices of one link towards those that its migrations show. A link without prices takes
/// those as they are.
template <typename Carries>
void learn_link(const BinTimeline& timeline, const Simulation& simulation, Carries carries,
                std::vector<double>* prices) {
  double period_ns = 0;
  for (uint32_t bin = 0; bin < timeline.count(); ++bin) {
    period_ns += static_cast<double>(timeline.duration_ns(bin));
  }
  BusyShares busy(period_ns);
  for (const Migration& migration : simulation.migrations) {
    if (carries(migration)) busy.add(migration);
  }
  const double part = prices->empty() ? 1.0 : kPartOfTheWay;
  prices->resize(timeline.count(), 0);
  double begin_ns = 0;
  for (uint32_t bin = 0; bin < timeline.count(); ++bin) {
    const double duration_ns = static_cast<double>(timeline.duration_ns(bin));
    const double shown = kIdlePrice + (1 - kIdlePrice) * busy.around(begin_ns + duration_ns / 2);
    (*prices)[bin] += part * (shown - (*prices)[bin]);
    begin_ns += duration_ns;
  }
}

}  // namespace

void LinkPrices::learn(const BinTimeline& timeline, const Simulation& simulation,
                       bool is_half_duplex) {
  const auto reads = [&](const Migration& move) { return move.is_fetch || is_half_duplex; };
  const auto writes = [&](const Migration& move) { return !move.is_fetch || is_half_duplex; };
  learn_link(timeline, simulation, reads, &read_);
  learn_link(timeline, simulation, writes, &write_);
}

}  // namespace tencache
