// SPDX-License-Identifier: Apache-2.0
//
// NotedExtent: an extent as it was when it was noted. Extents are recycled, so a note that is kept
// also says which extent was meant.
#pragma once

#include <cstdint>

#include "memory/extent.h"

namespace tencache {

struct NotedExtent {
  Extent* extent = nullptr;
  uint64_t id = 0;
  uint64_t bytes = 0;

  /// Whether no other extent has taken the place of the one that was noted.
  bool is_current() const { return extent->id == id; }
};

inline NotedExtent noted(Extent* extent) { return {extent, extent->id, extent->bytes}; }
/// Lets a template take extents and notes alike.
inline NotedExtent noted(const NotedExtent& extent) { return extent; }

}  // namespace tencache
