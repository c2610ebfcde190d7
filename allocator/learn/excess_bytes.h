// SPDX-License-Identifier: Apache-2.0
//
// ExcessBytes: how many bytes are above the budget, bin by bin. Tensors that are away take some
// of it away; what that is worth is the sum over bins of bytes times time.
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
  /// What a tensor takes away of it that is away in these bins. A bin without duration counts
  /// too, but little.
  double benefit(const BinTimeline::Range& away, uint64_t bytes) const;
  void take(const BinTimeline::Range& away, uint64_t bytes);

 private:
  struct Block {
    double least = 0;  // of its bins
    double most = 0;
    double time = 0;     // in all
    double product = 0;  // of bytes and time, in all
  };

  double benefit_bin_by_bin(uint32_t begin, uint32_t end, double bytes) const;
  void sum_up(uint32_t block);

  const BinTimeline& timeline_;
  std::vector<double> bytes_;  // by bin; whole numbers
  std::vector<double> time_;   // by bin; never 0
  std::vector<Block> blocks_;
  uint32_t bins_ = 0;  // in which there is any
};

}  // namespace tencache
