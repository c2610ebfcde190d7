// SPDX-License-Identifier: Apache-2.0
//
// Finds the driver's functions once, and ends the process where one is missing. A mutex guards the
// primary contexts, which are retained at first use and never released.
#include "driver_table.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace emulated_gpu::runtime {

const Driver& driver() {
  static const Driver* const made = [] {
    auto* d = new Driver;
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      fprintf(stderr, "emulated GPU: %s\n", dlerror());
      abort();
    }
    d->get = reinterpret_cast<decltype(d->get)>(dlsym(library, "cuGetProcAddress_v2"));
#define EMULATED_FIND(name)                                                                  \
  {                                                                                          \
    CUdriverProcAddressQueryResult found;                                                    \
    if (d->get(#name, reinterpret_cast<void**>(&d->name), 13000, 0, &found) != CUDA_SUCCESS) \
      fprintf(stderr, "emulated GPU: the driver has no %s\n", #name), abort();               \
  }
    EMULATED_DRIVER(EMULATED_FIND)
#undef EMULATED_FIND
    d->function = reinterpret_cast<decltype(d->function)>(dlsym(library, "emulated_gpu_function"));
    d->is_device =
        reinterpret_cast<decltype(d->is_device)>(dlsym(library, "emulated_gpu_is_device"));
    d->device_of =
        reinterpret_cast<decltype(d->device_of)>(dlsym(library, "emulated_gpu_device_of"));
    d->is_registered =
        reinterpret_cast<decltype(d->is_registered)>(dlsym(library, "emulated_gpu_is_registered"));
    d->fail = reinterpret_cast<decltype(d->fail)>(dlsym(library, "emulated_gpu_fail"));
    d->set_capturing =
        reinterpret_cast<decltype(d->set_capturing)>(dlsym(library, "emulated_gpu_set_capturing"));
    d->cuInit(0);
    d->cuDeviceGetCount(&d->device_count);
    return d;
  }();
  return *made;
}

namespace {
std::mutex context_mutex;
std::map<int, CUcontext> contexts;
thread_local int wanted_device = 0;
}  // namespace

CUcontext context_of(int device) {
  const std::lock_guard lock(context_mutex);
  CUcontext& context = contexts[device];
  if (context == nullptr) driver().cuDevicePrimaryCtxRetain(&context, device);
  return context;
}
void want_device(int device) { wanted_device = device; }
int current_device() {
  CUdevice device = 0;
  return driver().cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : wanted_device;
}
// As the run time does: the first call that needs a context makes the primary one current.
const Driver& ready() {
  const Driver& d = driver();
  CUcontext context = nullptr;
  if (d.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) {
    d.cuCtxSetCurrent(context_of(wanted_device));
  }
  return d;
}
}  // namespace emulated_gpu::runtime
