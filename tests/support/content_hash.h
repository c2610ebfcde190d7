// SPDX-License-Identifier: Apache-2.0
//
// The content hash of bytes that are all there. The product feeds its hashers piece by piece.
#pragma once

#include <cstddef>

#include "tier/content_hash.h"

namespace tencache {

inline ContentHash content_hash(const void* data, size_t bytes) {
  ContentHasher hasher;
  hasher.append(data, bytes);
  return hasher.finish();
}

}  // namespace tencache
