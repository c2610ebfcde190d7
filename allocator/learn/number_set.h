// SPDX-License-Identifier: Apache-2.0
//
// NumberSet: a set of small numbers, one bit each, that finds the nearest member from any number on
// by reading 64 of them at a time.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

namespace tencache {

class NumberSet {
 public:
  /// Of numbers below `size`.
  explicit NumberSet(uint32_t size) : size_(size), words_(size / 64 + 1) {}

  void insert(uint32_t number) { words_[number / 64] |= bit(number); }
  void erase(uint32_t number) { words_[number / 64] &= ~bit(number); }

  /// The smallest member that is `from` or larger.
  std::optional<uint32_t> at_or_after(uint32_t from) const {
    if (from >= size_) return std::nullopt;
    uint32_t index = from / 64;
    uint64_t bits = words_[index] & (~uint64_t{0} << from % 64);
    while (bits == 0) {
      if (++index == words_.size()) return std::nullopt;
      bits = words_[index];
    }
    return index * 64 + static_cast<uint32_t>(std::countr_zero(bits));
  }

  /// The largest member below `end`. REQUIRES: end is the size at most.
  std::optional<uint32_t> before(uint32_t end) const {
    uint32_t index = end / 64;
    uint64_t bits = words_[index] & ~(~uint64_t{0} << end % 64);
    while (bits == 0) {
      if (index-- == 0) return std::nullopt;
      bits = words_[index];
    }
    return index * 64 + 63 - static_cast<uint32_t>(std::countl_zero(bits));
  }

 private:
  static uint64_t bit(uint32_t number) { return uint64_t{1} << number % 64; }

  uint32_t size_;
  std::vector<uint64_t> words_;
};

}  // namespace tencache
