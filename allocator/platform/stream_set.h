// SPDX-License-Identifier: Apache-2.0
//
// StreamSet: a set of the streams of one GPU, a bit each. The cuda backend numbers them; the cpu
// backend, whose ops are done when they return, has none.
#pragma once

#include <cstdint>

namespace tencache {

using StreamSet = uint64_t;
inline constexpr StreamSet kNoStreams = 0;

}  // namespace tencache
