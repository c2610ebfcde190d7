// SPDX-License-Identifier: Apache-2.0
//
// UseCount: how much of something is in use now, its peak, and how much came and went in all, as
// PyTorch's memory statistics report it. It is a plain value without a lock: its owner guards it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tencache {

struct UseCount {
  uint64_t current = 0;
  uint64_t peak = 0;  // since the last reset_peak()
  uint64_t added = 0;
  uint64_t removed = 0;

  void add(uint64_t amount) {
    current += amount;
    added += amount;
    peak = std::max(peak, current);
  }
  void remove(uint64_t amount) {
    current -= amount;
    removed += amount;
  }
  void reset_peak() { peak = current; }
  void reset_totals() { added = removed = 0; }
};

}  // namespace tencache
