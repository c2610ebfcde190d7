// SPDX-License-Identifier: Apache-2.0
//
// LinkPrices: what a nanosecond of each link is worth, bin by bin. A link that would idle anyway
// carries a move for next to nothing; one that is never idle makes the program wait for it. The
// simulation of a plan shows which moments are which, so a choice of gaps that knows the prices
// uses idle links first: gradients leave in a backward pass, which only reads, rather than
// activations in a forward pass, which writes all the time. But what is cheap now is dear once all
// have chosen it. So prices move only a part of the way, plan by plan.
#pragma once

#include <cstdint>
#include <vector>

#include "learn/bin_timeline.h"
#include "learn/simulator.h"

namespace tencache {

class LinkPrices {
 public:
  /// At first every nanosecond has the full price, 1.
  LinkPrices() = default;

  /// Goes half of the way to the prices that this simulation shows, or all of it the first time.
  /// REQUIRES: the timeline includes the simulation's waits.
  void learn(const BinTimeline& timeline, const Simulation& simulation, bool is_half_duplex);

  double of_reading(uint32_t bin) const { return read_.empty() ? 1.0 : read_[bin]; }
  double of_writing(uint32_t bin) const { return write_.empty() ? 1.0 : write_[bin]; }

 private:
  std::vector<double> read_;  // by bin
  std::vector<double> write_;
};

}  // namespace tencache
