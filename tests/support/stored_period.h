// SPDX-License-Identifier: Apache-2.0
//
// A period as another run finds it in a file: the extents that are always there are not known.
#pragma once

#include <utility>

#include "learn/period.h"

namespace tencache {

inline Period as_stored(Period period) {
  for (uint64_t& extent_id : period.extent_ids) {
    if (extent_id != 0) extent_id = kUnknownExtent;
  }
  return period;
}

}  // namespace tencache
