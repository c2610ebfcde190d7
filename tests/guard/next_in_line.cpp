// SPDX-License-Identifier: Apache-2.0
//
// This library is built twice and preloaded behind the guard. It stands before another of its kind,
// as a preloaded allocator stands before the C library. The functions tell how many stand behind;
// the second has a name like the driver's.
#include <dlfcn.h>

#define NEXT_IN_LINE(name)                                                  \
  extern "C" __attribute__((visibility("default"))) int name() {            \
    const auto next = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, #name)); \
    return next != nullptr ? next() + 1 : 0;                                \
  }
NEXT_IN_LINE(place_in_line)
NEXT_IN_LINE(cuPlaceInLine)
