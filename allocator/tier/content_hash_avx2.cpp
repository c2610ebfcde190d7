// SPDX-License-Identifier: Apache-2.0
//
// XXH3 for processors with AVX2, in a program that starts on any x86-64. Headers included under the
// pragmas define only static functions, so no function compiled for AVX2 can replace its plain twin
// elsewhere in the program. Headers that define functions with external linkage are included before
// the pragmas.
#include "tier/content_hash_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>

// Neither compiler defines __AVX2__ reliably inside its pragma, so this line selects the kernel by
// hand; 2 is XXH_AVX2.
#define XXH_VECTOR 2

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tencache {

void append_by_avx2(void* state, const void* data, size_t bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state), data, bytes);
}

}  // namespace tencache

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // defined(__x86_64__)
