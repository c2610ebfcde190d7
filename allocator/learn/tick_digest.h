// SPDX-License-Identifier: Apache-2.0
//
// TickDigest: what makes two ticks alike, in 64 bits. It covers the op and, for each access in
// order, whether it writes. Sizes do not count: those of what is always there cannot change, and
// the others follow the batch, or the length of a cache. The identity of the extents is compared
// separately (learn/period.h). Hot path: the gate works one out for every op.
#pragma once

#include <bit>
#include <cstdint>

namespace tencache {

class TickDigest {
 public:
  explicit TickDigest(uint32_t op) : value_(mix(op + 1)) {}

  void add(bool is_write) { value_ = extend(value_, is_write); }
  uint64_t value() const { return value_; }

  /// The digest of a tick with one access more than the tick of `digest`.
  static uint64_t extend(uint64_t digest, bool is_write) {
    return mix(digest ^ (is_write ? 3 : 2));
  }

  /// Tells ticks of the same digest apart that name very different numbers of bytes. Sizes are
  /// rounded to a quarter of a power of two.
  static uint64_t with_size(uint64_t digest, uint64_t bytes) {
    return mix(digest ^ size_class(bytes));
  }

  /// The position of the highest bit and the two bits below it.
  static uint64_t size_class(uint64_t bytes) {
    if (bytes < 4) return bytes;
    const auto top = static_cast<uint64_t>(std::bit_width(bytes) - 1);
    return top << 2 | ((bytes >> (top - 2)) & 3);
  }

  static uint64_t mix(uint64_t value) {
    value *= 0x9e3779b97f4a7c15u;
    return value ^ (value >> 29);
  }

 private:
  uint64_t value_;
};

}  // namespace tencache
