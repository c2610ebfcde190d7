// SPDX-License-Identifier: Apache-2.0
//
// The two ways to compute XXH3, compiled from one header for different instruction sets; their
// results are equal in every bit. content_hash.cpp picks one when the process starts. Internal. The
// caller holds all state; any thread.
#pragma once

#include <cstddef>

#include "tier/content_hash.h"

namespace tencache {

struct HashKernels {
  ContentHash (*one_shot)(const void* data, size_t bytes);
  void (*append)(void* state, const void* data, size_t bytes);  // state is an XXH3_state_t
};

#if defined(__x86_64__)
/// REQUIRES: the processor has AVX2.
extern const HashKernels kAvx2HashKernels;
#endif

}  // namespace tencache
