// SPDX-License-Identifier: Apache-2.0
//
// Functions without a stand-in fail with their name: NCCL's own memory, memory windows and the
// kernels' access to them, communicators that shrink, grow or pause, and simulated groups. A
// refusal reads no argument.
#include "errors.h"

// An assembler name avoids a conflict with the header's declaration of other parameters; some of
// the names are in newer headers only.
#define ABSENT(name)                                                                              \
  extern "C" __attribute__((visibility("default"))) ncclResult_t refused_##name() __asm__(#name); \
  ncclResult_t refused_##name() { return emulated_gpu::nccl::refuse(#name); }
#include "absent.inc"
#undef ABSENT
