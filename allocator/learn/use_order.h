// SPDX-License-Identifier: Apache-2.0
//
// UseOrder: tensors in the order of their next uses, and of equals by number. A use is a tick
// counted from the start of a simulation, so uses are dense, and the first and the last tensor are
// found by a search for a bit. The tensors of one use are a ring, to which one with a higher number
// than all is added at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "learn/number_set.h"

namespace tencache {

class UseOrder {
 public:
  explicit UseOrder(size_t tensor_count) : next_(tensor_count), previous_(tensor_count) {}

  bool is_empty() const { return count_ == 0; }
  /// REQUIRES: the tensor is not here.
  void insert(uint64_t use, uint32_t tensor) {
    if (use >= first_.size()) grow(use + 1);
    ++count_;
    uint32_t& first = first_[use];
    if (first == kNone) {
      uses_.insert(static_cast<uint32_t>(use));
      first = next_[tensor] = previous_[tensor] = tensor;
      return;
    }
    uint32_t later = first;  // the first that has a higher number, or the ring's first
    if (previous_[first] > tensor) {
      while (later < tensor) later = next_[later];
    }
    link(previous_[later], tensor);
    link(tensor, later);
    if (tensor < first) first = tensor;
  }
  /// REQUIRES: the tensor is here, with this use.
  void erase(uint64_t use, uint32_t tensor) {
    --count_;
    uint32_t& first = first_[use];
    if (next_[tensor] == tensor) {
      first = kNone;
      uses_.erase(static_cast<uint32_t>(use));
      return;
    }
    if (first == tensor) first = next_[tensor];
    link(previous_[tensor], next_[tensor]);
  }

  /// The tensor that is needed first. REQUIRES: !is_empty().
  uint32_t first() const { return first_[uses_.at_or_after(0).value_or(0)]; }
  /// The tensor that is needed last. REQUIRES: !is_empty().
  uint32_t last() const { return previous_[first_[uses_.before(end()).value_or(0)]]; }
  /// Visits the tensors whose use is above `after` and at most `until`.
  template <typename Visit>
  void visit(uint64_t after, uint64_t until, Visit visit) const {
    for (uint64_t from = after + 1; from <= until && from < first_.size();) {
      const std::optional<uint32_t> use = uses_.at_or_after(static_cast<uint32_t>(from));
      if (!use || *use > until) return;
      uint32_t tensor = first_[*use];
      do {
        visit(tensor);
        tensor = next_[tensor];
      } while (tensor != first_[*use]);
      from = uint64_t{*use} + 1;
    }
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  uint32_t end() const { return static_cast<uint32_t>(first_.size()); }
  void link(uint32_t left, uint32_t right) {
    next_[left] = right;
    previous_[right] = left;
  }
  void grow(uint64_t size) {
    first_.resize(std::max<uint64_t>(size, 2 * first_.size()), kNone);
    uses_.grow(end());
  }

  NumberSet uses_{0};            // at which any tensor is needed
  std::vector<uint32_t> first_;  // by use; kNone: nobody
  std::vector<uint32_t> next_;   // by tensor: its ring, by ascending numbers
  std::vector<uint32_t> previous_;
  size_t count_ = 0;
};

}  // namespace tencache
