// SPDX-License-Identifier: Apache-2.0
//
// StreamSet: a set of the streams of one GPU, one bit each. The cuda backend numbers them; the cpu
// backend, whose ops have ended when they return, has none.
#pragma once

#include <cstdint>

namespace tencache {

using StreamSet = uint64_t;
inline constexpr StreamSet kNoStreams = 0;

}  // namespace tencache
