// SPDX-License-Identifier: Apache-2.0
//
// NextUses: tells how soon extents are needed, as far as a plan knows. The extent that is needed
// last leaves a tier first.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "memory/extent.h"

namespace tencache {

class NextUses {
 public:
  virtual ~NextUses() = default;
  /// Ticks until each known extent is used next. Returns an empty map where nothing is known.
  virtual std::unordered_map<const Extent*, uint64_t> next_uses() const = 0;
  /// Copies to the lowest tier are made ahead of need until this much lies there.
  virtual uint64_t copy_ahead_bytes() const { return 0; }
};

}  // namespace tencache
