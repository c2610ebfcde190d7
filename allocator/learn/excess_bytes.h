// SPDX-License-Identifier: Apache-2.0
//
// ExcessBytes: how many bytes are above the budget, slot by slot. Tensors that are away take some
// of it away; what that is worth is the sum over slots of bytes times time.
#pragma once

#include <cstdint>
#include <vector>

#include "learn/slot_timeline.h"

namespace tencache {

class ExcessBytes {
 public:
  /// The timeline must outlive this.
  ExcessBytes(const SlotTimeline& timeline, const Trace& trace, uint64_t budget_bytes);

  bool is_zero() const { return slots_ == 0; }
  /// What a tensor takes away of it that is away in these slots. A slot without duration counts
  /// too, but little.
  double benefit(const SlotTimeline::Range& away, uint64_t bytes) const;
  void take(const SlotTimeline::Range& away, uint64_t bytes);

 private:
  struct Block {
    double least = 0;  // of its slots
    double most = 0;
    double time = 0;     // in all
    double product = 0;  // of bytes and time, in all
  };

  double benefit_slot_by_slot(uint32_t begin, uint32_t end, double bytes) const;
  void sum_up(uint32_t block);

  const SlotTimeline& timeline_;
  std::vector<double> bytes_;  // by slot; whole numbers
  std::vector<double> time_;   // by slot; never 0
  std::vector<Block> blocks_;
  uint32_t slots_ = 0;  // in which there is any
};

}  // namespace tencache
