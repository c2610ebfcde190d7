// SPDX-License-Identifier: Apache-2.0
#include "driver_table.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace emulated_gpu::runtime {

namespace {

[[noreturn]] void end(const char* what, const char* name) {
  fprintf(stderr, "emulated GPU: %s %s\n", what, name);
  abort();
}

// Finds cuGetProcAddress itself, or an extension of the emulation, which cuGetProcAddress does not
// know.
template <typename Function>
void find_export(void* library, const char* name, Function* found) {
  *found = reinterpret_cast<Function>(dlsym(library, name));
  if (*found == nullptr) end("the driver has no", name);
}

template <typename Function>
void find_function(const Driver& d, const char* name, Function* found) {
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult result = d.get(name, reinterpret_cast<void**>(found), CUDART_VERSION, 0, &status);
  if (result != CUDA_SUCCESS) end("the driver has no", name);
}

Driver* make_driver() {
  auto* d = new Driver;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) end("no driver:", dlerror());
  find_export(library, "cuGetProcAddress_v2", &d->get);
#define EMULATED_FIND(name) find_function(*d, #name, &d->name);
  EMULATED_DRIVER(EMULATED_FIND)
#undef EMULATED_FIND
  find_export(library, "emulated_gpu_function", &d->function);
  find_export(library, "emulated_gpu_is_device", &d->is_device);
  find_export(library, "emulated_gpu_device_of", &d->device_of);
  find_export(library, "emulated_gpu_is_registered", &d->is_registered);
  find_export(library, "emulated_gpu_fail", &d->fail);
  find_export(library, "emulated_gpu_check_unsafe", &d->check_unsafe);
  find_export(library, "emulated_gpu_wait_for_device", &d->wait_for_device);
  if (d->cuInit(0) != CUDA_SUCCESS) end("the driver refuses", "cuInit");
  if (d->cuDeviceGetCount(&d->device_count) != CUDA_SUCCESS)
    end("the driver refuses", "cuDeviceGetCount");
  return d;
}

}  // namespace

const Driver& driver() {
  static const Driver* const made = make_driver();
  return *made;
}

}  // namespace emulated_gpu::runtime
