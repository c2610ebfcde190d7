// SPDX-License-Identifier: Apache-2.0
//
// The accesses of the C ABI as the gate's: the C struct and its mode bits equal the C++ ones, so
// the gate's hot path converts nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "abi/tencache.h"
#include "engine/gate/gate.h"

namespace tencache {

static_assert(sizeof(Access) == sizeof(tencache_access));
static_assert(offsetof(Access, address) == offsetof(tencache_access, address));
static_assert(offsetof(Access, mode) == offsetof(tencache_access, mode));
static_assert(static_cast<uint32_t>(AccessMode::kRead) == TENCACHE_READ);
static_assert(static_cast<uint32_t>(AccessMode::kWrite) == TENCACHE_WRITE);
static_assert(static_cast<uint32_t>(AccessMode::kName) == TENCACHE_NAME);

inline std::span<const Access> as_accesses(const tencache_access* accesses, uint32_t count) {
  return {reinterpret_cast<const Access*>(accesses), count};
}

}  // namespace tencache
