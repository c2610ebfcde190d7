// SPDX-License-Identifier: Apache-2.0
//
// The second of the two ways to compute XXH3, which are compiled from one header for different
// instruction sets; their results are equal in every bit. content_hash.cpp has the first way, and
// picks one of the two when the first hash is computed. This header is internal. The caller holds
// all state. Threads: any.
#pragma once

#include <cstddef>

namespace tencache {

#if defined(__x86_64__)
/// Feeds an XXH3_state_t. REQUIRES: the processor has AVX2.
void append_by_avx2(void* state, const void* data, size_t bytes);
#endif

}  // namespace tencache
