// SPDX-License-Identifier: Apache-2.0
//
// HostPinner: pins host memory, so that a device's copy engines reach it directly and at full
// speed. The tiers know pinning by this interface alone. The cuda backend implements it over the
// driver (platform/cuda/host_pinner.h); the suites have one that refuses.
//
// Threads: any, several at once. A call may take a tenth of a second for each GiB.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace tencache {

class HostPinner {
 public:
  virtual ~HostPinner() = default;
  /// Pins whole pages that are present and not pinned yet. After an error none of them is pinned,
  /// and they are usable as before.
  virtual Status pin(void* memory, uint64_t bytes) = 0;
  /// Undoes one pin(). No copy from or to the memory may be under way.
  virtual void unpin(void* memory, uint64_t bytes) = 0;
};

}  // namespace tencache
