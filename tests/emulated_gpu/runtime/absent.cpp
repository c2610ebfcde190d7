// SPDX-License-Identifier: Apache-2.0
//
// Functions without a stand-in fail with their name: each function of absent.inc is exported, and
// refused without a look at its arguments. Any thread may call.
#include "errors.h"

// An assembler name avoids a conflict with the header's declaration of other parameters.
#define ABSENT(name)                                                                             \
  extern "C" __attribute__((visibility("default"))) cudaError_t refused_##name() __asm__(#name); \
  cudaError_t refused_##name() { return emulated_gpu::runtime::refuse(#name); }
#undef cudaGraphAddNode
#undef cudaStreamUpdateCaptureDependencies
#include "absent.inc"
#undef ABSENT
