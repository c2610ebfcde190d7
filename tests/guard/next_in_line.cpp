// SPDX-License-Identifier: Apache-2.0
//
// Built twice and preloaded behind the guard: a library that stands before another of its kind, as
// a preloaded allocator stands before the C library. place_in_line() tells how many stand behind.
#include <dlfcn.h>

extern "C" __attribute__((visibility("default"))) int place_in_line() {
  const auto next = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "place_in_line"));
  return next != nullptr ? next() + 1 : 0;
}
