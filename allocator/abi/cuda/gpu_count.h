// SPDX-License-Identifier: Apache-2.0
//
// A UseCount as the C ABI has it.
#pragma once

#include "abi/tencache_gpu.h"
#include "base/use_count.h"

namespace tencache {

inline tencache_gpu_count converted(const UseCount& count) {
  return {count.current, count.peak, count.added, count.removed};
}

}  // namespace tencache
