// SPDX-License-Identifier: Apache-2.0
#include "learn/write_chains.h"

namespace tencache {

WriteChains::WriteChains(const std::vector<Gap>& gaps)
    : before_(gaps.size(), kNone), after_(gaps.size(), kNone), is_written_(gaps.size(), false) {
  const uint32_t count = static_cast<uint32_t>(gaps.size());
  for (uint32_t first = 0; first < count;) {
    uint32_t end = first;
    bool is_written = false;
    while (end < count && gaps[end].tensor == gaps[first].tensor) {
      is_written |= gaps[end++].was_written;
    }
    for (uint32_t gap = first; is_written && gap < end; ++gap) {
      is_written_[gap] = true;
      if (gaps[gap].was_written) continue;
      // Only a tensor that is always there can have a first gap that begins no chain.
      before_[gap] = gap == first ? end - 1 : gap - 1;
      after_[before_[gap]] = gap;
    }
    first = end;
  }
}

bool WriteChains::needs_write(uint32_t gap, const std::vector<bool>& chosen) const {
  if (!is_written_[gap]) return false;
  for (uint32_t earlier = before_[gap]; earlier != kNone; earlier = before_[earlier]) {
    if (chosen[earlier]) return false;
  }
  return true;
}

bool WriteChains::serves_later(uint32_t gap, const std::vector<bool>& chosen) const {
  for (uint32_t later = after_[gap]; later != kNone; later = after_[later]) {
    if (chosen[later]) return true;
  }
  return false;
}

}  // namespace tencache
