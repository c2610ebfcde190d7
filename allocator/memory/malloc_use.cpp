// SPDX-License-Identifier: Apache-2.0
#include "memory/malloc_use.h"

#include <malloc.h>

#include "base/units.h"

namespace tencache {
namespace {

// malloc_trim walks every free block of the process under malloc's locks; less gain is not worth
// it.
constexpr uint64_t kTrimBytesMin = 8 * kMiB;

}  // namespace

uint64_t MallocUse::trim() {
  if (reserved_.load() < used_.load() + kTrimBytesMin) return 0;
  malloc_trim(0);
  uint64_t reserved = reserved_.load();
  uint64_t used = used_.load();
  while (reserved > used && !reserved_.compare_exchange_weak(reserved, used)) used = used_.load();
  if (reserved <= used) return 0;
  budget_.release(reserved - used);
  // Other threads may have counted blocks in before they could see the lower figure.
  const uint64_t late = add(0);
  if (late > 0) {
    budget_.force_reserve(late);
    confirm(late);
  }
  return reserved - used;
}

}  // namespace tencache
