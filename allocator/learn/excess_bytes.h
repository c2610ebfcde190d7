// SPDX-License-Identifier: Apache-2.0
//
// ExcessBytes: how many bytes are above the budget, bin by bin. A tensor that is away removes some
// of the excess. Removing it is worth the sum over bins of bytes times time.
#pragma once

#include <cstdint>
#include <vector>

#include "learn/bin_timeline.h"

namespace tencache {

class ExcessBytes {
 public:
  /// The timeline must outlive this.
  ExcessBytes(const BinTimeline& timeline, const Trace& trace, uint64_t budget_bytes);

  bool is_zero() const { return bins_ == 0; }
  /// The excess that a tensor removes by being away in these bins. A bin without duration counts a
  /// little, too.
  double benefit(const BinTimeline::Range& away, uint64_t bytes) const;
  void take(const BinTimeline::Range& away, uint64_t bytes);

 private:
  struct Block {
    double least = 0;  // of the excess in its bins
    double most = 0;
    double time = 0;     // sum over its bins
    double product = 0;  // sum of bytes times time
  };

  double benefit_bin_by_bin(uint32_t begin, uint32_t end, double bytes) const;
  void sum_up(uint32_t block);

  const BinTimeline& timeline_;
  std::vector<double> bytes_;  // by bin; whole numbers
  std::vector<double> time_;   // by bin; never 0
  std::vector<Block> blocks_;
  uint32_t bins_ = 0;  // how many bins have any excess
};

}  // namespace tencache
