// SPDX-License-Identifier: Apache-2.0
//
// StreamSet: a set of the streams of one GPU. Each of the first 63 has a bit of its own; all later
// ones share the last bit. The cuda backend numbers the streams; the cpu backend, whose ops have
// ended when they return, has none.
#pragma once

#include <cstdint>

namespace tencache {

using StreamSet = uint64_t;
inline constexpr StreamSet kNoStreams = 0;

/// Whether the set has exactly one bit. std::has_single_bit() would call libgcc's popcount, since
/// not every x86-64 processor has the instruction.
constexpr bool has_one_bit(StreamSet set) { return set != kNoStreams && (set & (set - 1)) == 0; }

}  // namespace tencache
