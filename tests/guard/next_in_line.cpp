// SPDX-License-Identifier: Apache-2.0
//
// This library is built twice, and both copies are preloaded behind the guard. The first stands
// before the second, as a preloaded allocator stands before the C library. Each function tells how
// many copies stand behind its own; the name of the second function looks like one of the driver's.
#include <dlfcn.h>

#define NEXT_IN_LINE(name)                                                  \
  extern "C" __attribute__((visibility("default"))) int name() {            \
    const auto next = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, #name)); \
    return next != nullptr ? next() + 1 : 0;                                \
  }
NEXT_IN_LINE(place_in_line)
NEXT_IN_LINE(cuPlaceInLine)
