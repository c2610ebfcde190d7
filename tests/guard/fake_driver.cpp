// SPDX-License-Identifier: Apache-2.0
#include "guard/fake_driver.h"

#include <cstring>
#include <string>

#include "platform/cuda/driver_api.h"

#undef cuGetProcAddress

#define FAKE extern "C" __attribute__((visibility("default")))

using tencache::FakeDriver;
using tencache::FakeKernel;

FAKE FakeDriver* fake_driver() {
  static FakeDriver driver;
  return &driver;
}

namespace {

CUresult note(const char* name, CUstream stream, size_t bytes) {
  fake_driver()->calls.emplace_back(name);
  fake_driver()->stream = stream;
  fake_driver()->bytes = bytes;
  return fake_driver()->result;
}

CUresult note_launch(const char* name, CUstream stream, void** arguments) {
  fake_driver()->arguments = arguments;
  return note(name, stream, 0);
}

CUresult tell_argument(const FakeKernel& kernel, bool is_library_kernel, size_t index,
                       size_t* offset, size_t* bytes) {
  ++fake_driver()->questions;
  if (kernel.tells_nothing) return CUDA_ERROR_NOT_SUPPORTED;
  if (kernel.is_library_kernel != is_library_kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (index >= kernel.arguments.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel.arguments[index].first;
  *bytes = kernel.arguments[index].second;
  return CUDA_SUCCESS;
}

}  // namespace

FAKE CUresult cuInit(unsigned) { return note("cuInit", nullptr, 0); }

#define FAKE_LAUNCHES(suffix)                                                                   \
  FAKE CUresult cuLaunchKernel##suffix(CUfunction, unsigned, unsigned, unsigned, unsigned,      \
                                       unsigned, unsigned, unsigned, CUstream stream,           \
                                       void** arguments, void**) {                              \
    return note_launch("cuLaunchKernel" #suffix, stream, arguments);                            \
  }                                                                                             \
  FAKE CUresult cuLaunchKernelEx##suffix(const CUlaunchConfig* config, CUfunction, void** args, \
                                         void**) {                                              \
    return note_launch("cuLaunchKernelEx" #suffix, config->hStream, args);                      \
  }                                                                                             \
  FAKE CUresult cuLaunchCooperativeKernel##suffix(CUfunction, unsigned, unsigned, unsigned,     \
                                                  unsigned, unsigned, unsigned, unsigned,       \
                                                  CUstream stream, void** arguments) {          \
    return note_launch("cuLaunchCooperativeKernel" #suffix, stream, arguments);                 \
  }
FAKE_LAUNCHES()
FAKE_LAUNCHES(_ptsz)

// The header's macros give some of these names a version: cuMemcpyHtoD becomes cuMemcpyHtoD_v2.
FAKE CUresult cuMemcpyHtoD(CUdeviceptr, const void*, size_t bytes) {
  return note("cuMemcpyHtoD_v2", nullptr, bytes);
}
FAKE CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr, const void*, size_t bytes) {
  return note("cuMemcpyHtoD_v2_ptds", nullptr, bytes);
}
FAKE CUresult cuMemcpyDtoHAsync(void*, CUdeviceptr, size_t bytes, CUstream stream) {
  return note("cuMemcpyDtoHAsync_v2", stream, bytes);
}
FAKE CUresult cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t bytes, CUstream stream) {
  return note("cuMemcpyAsync", stream, bytes);
}
FAKE CUresult cuMemcpy2D(const CUDA_MEMCPY2D* copy) {
  return note("cuMemcpy2D_v2", nullptr, copy->WidthInBytes * copy->Height);
}
FAKE CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t bytes, CUstream stream) {
  return note("cuMemsetD8Async", stream, bytes);
}
FAKE CUresult cuStreamDestroy(CUstream stream) { return note("cuStreamDestroy_v2", stream, 0); }
FAKE CUresult cuModuleUnload(CUmodule) { return note("cuModuleUnload", nullptr, 0); }

FAKE CUresult cuFuncGetParamInfo(CUfunction kernel, size_t index, size_t* offset, size_t* bytes) {
  return tell_argument(*reinterpret_cast<const FakeKernel*>(kernel), false, index, offset, bytes);
}
FAKE CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* bytes) {
  return tell_argument(*reinterpret_cast<const FakeKernel*>(kernel), true, index, offset, bytes);
}
FAKE CUresult cuFuncGetName(const char** name, CUfunction kernel) {
  const auto& fake = *reinterpret_cast<const FakeKernel*>(kernel);
  if (fake.is_library_kernel) return CUDA_ERROR_INVALID_HANDLE;
  *name = fake.name.c_str();
  return CUDA_SUCCESS;
}
FAKE CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  *name = reinterpret_cast<const FakeKernel*>(kernel)->name.c_str();
  return CUDA_SUCCESS;
}

namespace {

// Stands for every function that the core looks up and no test calls.
CUresult refuse() { return CUDA_ERROR_NOT_SUPPORTED; }

bool is_of_the_core(const char* name) {
#define FAKE_IS_NAME(known) \
  if (std::strcmp(name, #known) == 0) return true;
  TENCACHE_CUDA_FUNCTIONS(FAKE_IS_NAME)
#undef FAKE_IS_NAME
  return false;
}

}  // namespace

FAKE CUresult cuGetProcAddress_v2(const char* name, void** entry, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult* status);

FAKE CUresult cuGetProcAddress(const char* name, void** entry, int version, cuuint64_t flags) {
  const bool is_per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const struct {
    const char* name;
    void* entry;
    void* per_thread;
  } kEntries[] = {
      {"cuInit", reinterpret_cast<void*>(&cuInit), reinterpret_cast<void*>(&cuInit)},
      {"cuLaunchKernel", reinterpret_cast<void*>(&cuLaunchKernel),
       reinterpret_cast<void*>(&cuLaunchKernel_ptsz)},
      {"cuMemcpyHtoD", reinterpret_cast<void*>(&cuMemcpyHtoD),
       reinterpret_cast<void*>(&cuMemcpyHtoD_v2_ptds)},
      {"cuMemcpyDtoHAsync", reinterpret_cast<void*>(&cuMemcpyDtoHAsync),
       reinterpret_cast<void*>(&cuMemcpyDtoHAsync)},
      {"cuStreamDestroy", reinterpret_cast<void*>(&cuStreamDestroy),
       reinterpret_cast<void*>(&cuStreamDestroy)},
  };
  *entry = is_of_the_core(name) ? reinterpret_cast<void*>(&refuse) : nullptr;
  if (std::strcmp(name, "cuGetProcAddress") == 0) {
    *entry = version < 12000 ? reinterpret_cast<void*>(&cuGetProcAddress)
                             : reinterpret_cast<void*>(&cuGetProcAddress_v2);
  }
  for (const auto& known : kEntries) {
    if (std::strcmp(name, known.name) == 0) *entry = is_per_thread ? known.per_thread : known.entry;
  }
  return *entry != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

FAKE CUresult cuGetProcAddress_v2(const char* name, void** entry, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult* status) {
  const CUresult result = cuGetProcAddress(name, entry, version, flags);
  if (status != nullptr) {
    *status =
        result == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return result;
}
