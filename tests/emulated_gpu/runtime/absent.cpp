// SPDX-License-Identifier: Apache-2.0
//
// What has no stand-in fails with its name: each function of absent.inc is exported, and refused
// without a look at its arguments. Any thread may call.
#include "errors.h"

// An assembler name, so that the header's declaration of other parameters does not stand against
// it.
#define ABSENT(name)                                                                             \
  extern "C" __attribute__((visibility("default"))) cudaError_t refused_##name() __asm__(#name); \
  cudaError_t refused_##name() { return emulated_gpu::runtime::refuse(#name); }
#undef cudaGraphAddNode
#undef cudaStreamUpdateCaptureDependencies
#include "absent.inc"
#undef ABSENT
