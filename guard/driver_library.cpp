// SPDX-License-Identifier: Apache-2.0
#include "driver_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "abi/tencache_guard.h"

namespace tencache::guard {
namespace {

// The versions of dlsym in glibc: since 2.34; before that on x86-64; before that on aarch64.
constexpr const char* kVersions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};

Dlsym find_dlsym() {
  for (const char* version : kVersions) {
    if (void* found = dlvsym(RTLD_NEXT, "dlsym", version)) return reinterpret_cast<Dlsym>(found);
  }
  std::abort();  // this is not glibc, and we cannot serve dlsym
}

}  // namespace

// The first call finds the function, because other libraries' constructors call dlsym before this
// library's static objects exist.
Dlsym real_dlsym() {
  static const Dlsym real = find_dlsym();
  return real;
}

void* find_in_driver(const char* name) {
  // The library is never closed: the driver itself never leaves a process either.
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library != nullptr ? real_dlsym()(library, name) : nullptr;
}

}  // namespace tencache::guard

void* tencache_guard_find(void* library, const char* name) {
  return tencache::guard::real_dlsym()(library, name);
}
