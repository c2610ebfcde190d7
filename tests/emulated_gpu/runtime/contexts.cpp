// SPDX-License-Identifier: Apache-2.0
#include "contexts.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace emulated_gpu::runtime {

namespace {
std::mutex mutex;
std::map<int, CUcontext> contexts;
thread_local int wanted_device = 0;
}  // namespace

bool has_peers() {
  static const bool are_peers = [] {
    const char* const text = getenv("EMULATED_GPU_PEERS");
    return text != nullptr && strcmp(text, "1") == 0;
  }();
  return are_peers;
}

bool has_device(int device) { return device >= 0 && device < driver().device_count; }

CUcontext context_of(int device) {
  const std::lock_guard lock(mutex);
  CUcontext& context = contexts[device];
  if (context == nullptr && driver().cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
    context = nullptr;
  return context;
}

int current_device() {
  CUdevice device = 0;
  return driver().cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : wanted_device;
}

CUresult set_current_device(int device) {
  wanted_device = device;
  CUcontext context = context_of(device);
  return context != nullptr ? driver().cuCtxSetCurrent(context) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult synchronize_device(int device) {
  const Driver& d = driver();
  CUcontext context = context_of(device);
  CUresult result = context != nullptr ? d.cuCtxPushCurrent(context) : CUDA_ERROR_INVALID_CONTEXT;
  if (result != CUDA_SUCCESS) return result;
  result = d.wait_for_device();
  d.cuCtxPopCurrent(&context);
  return result;
}

CUresult synchronize_devices() {
  const Driver& d = driver();
  CUresult first = CUDA_SUCCESS;
  for (int device = 0; device < d.device_count; ++device) {
    unsigned flags = 0;
    int is_active = 0;
    CUresult result = d.cuDevicePrimaryCtxGetState(device, &flags, &is_active);
    if (result == CUDA_SUCCESS && is_active != 0) result = synchronize_device(device);
    if (first == CUDA_SUCCESS) first = result;
  }
  return first;
}

const Driver& ready() {
  const Driver& d = driver();
  CUcontext context = nullptr;
  if (d.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr)
    set_current_device(wanted_device);
  return d;
}

}  // namespace emulated_gpu::runtime
