// SPDX-License-Identifier: Apache-2.0
//
// WriteChains: which gaps of a tensor share one write. A tensor's chain is the sequence of its gaps
// from one write to the next. Whoever uses gaps of a chain writes the tensor in the first of them;
// its copy serves the later ones, since nothing writes the tensor in between. The chain of a tensor
// that is always there may begin in the repetition before. A tensor that nobody writes needs no
// write in any gap, because it has had a copy since it last left.
//
// Gaps go by their index in the list that the chains were made of (gaps_of).
#pragma once

#include <cstdint>
#include <vector>

#include "learn/trace.h"

namespace tencache {

class WriteChains {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  /// REQUIRES: the gaps are those of gaps_of().
  explicit WriteChains(const std::vector<Gap>& gaps);

  /// Whether a tensor that leaves in this gap has to be written, if it also leaves in the chosen
  /// gaps. Whether the gap itself is chosen does not matter.
  bool needs_write(uint32_t gap, const std::vector<bool>& chosen) const;
  /// Whether a later gap of the chain is chosen.
  bool serves_later(uint32_t gap, const std::vector<bool>& chosen) const;
  /// The neighbours in the chain, or kNone.
  uint32_t before(uint32_t gap) const { return before_[gap]; }
  uint32_t after(uint32_t gap) const { return after_[gap]; }

 private:
  std::vector<uint32_t> before_;
  std::vector<uint32_t> after_;
  std::vector<bool> is_written_;  // whether anything writes the gap's tensor
};

}  // namespace tencache
