// SPDX-License-Identifier: Apache-2.0
//
// NumberSet: a set of small numbers, one bit each, that finds the nearest member from any number
// on. A second sequence of bits says which words of the first sequence have members, so a search
// through 4096 numbers without a member reads one word.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

namespace tencache {

class NumberSet {
 public:
  /// Holds numbers below `size`.
  explicit NumberSet(uint32_t size) : words_(size / 64 + 1), summary_(words_.size() / 64 + 1) {}

  /// From now on the set holds numbers below `size`, which is no smaller than before.
  void grow(uint32_t size) {
    words_.resize(size / 64 + 1);
    summary_.resize(words_.size() / 64 + 1);
  }
  void insert(uint32_t number) {
    words_[number / 64] |= bit(number);
    summary_[number / 64 / 64] |= bit(number / 64);
  }
  void erase(uint32_t number) {
    words_[number / 64] &= ~bit(number);
    if (words_[number / 64] == 0) summary_[number / 64 / 64] &= ~bit(number / 64);
  }

  /// The smallest member that is at least `from`. REQUIRES: `from` is at most the size.
  std::optional<uint32_t> at_or_after(uint32_t from) const {
    const uint64_t rest = words_[from / 64] & not_below(from);
    if (rest != 0) return from / 64 * 64 + lowest(rest);
    uint32_t index = from / 64 / 64;
    // Only later words count; none is left when this is the last of its 64.
    uint64_t bits = summary_[index] & not_below(from / 64) & ~bit(from / 64);
    while (bits == 0) {
      if (++index == summary_.size()) return std::nullopt;
      bits = summary_[index];
    }
    const uint32_t word = index * 64 + lowest(bits);
    return word * 64 + lowest(words_[word]);
  }

  /// The largest member below `end`. REQUIRES: `end` is at most the size.
  std::optional<uint32_t> before(uint32_t end) const {
    const uint64_t rest = words_[end / 64] & ~not_below(end);
    if (rest != 0) return end / 64 * 64 + highest(rest);
    uint32_t index = end / 64 / 64;
    uint64_t bits = summary_[index] & ~not_below(end / 64);
    while (bits == 0) {
      if (index-- == 0) return std::nullopt;
      bits = summary_[index];
    }
    const uint32_t word = index * 64 + highest(bits);
    return word * 64 + highest(words_[word]);
  }

 private:
  static uint64_t bit(uint32_t number) { return uint64_t{1} << number % 64; }
  static uint64_t not_below(uint32_t number) { return ~uint64_t{0} << number % 64; }
  static uint32_t lowest(uint64_t bits) { return static_cast<uint32_t>(std::countr_zero(bits)); }
  static uint32_t highest(uint64_t bits) {
    return 63 - static_cast<uint32_t>(std::countl_zero(bits));
  }

  std::vector<uint64_t> words_;    // a bit for each number
  std::vector<uint64_t> summary_;  // a bit for each word that is not 0
};

}  // namespace tencache
