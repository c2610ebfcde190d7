// SPDX-License-Identifier: Apache-2.0
//
// The ways in which a library finds a function of the driver: by dlsym() on the driver's library
// (cuBLASLt, Triton, CuPy); by cuGetProcAddress(), itself found by dlsym() (CUDA's runtime, in each
// copy that is linked into a library); or by the linker. The preloaded guard stands before all
// three; driver_functions.cpp has what the linker finds. A lookup of anything else goes on to the C
// library unchanged.
#include <cuda.h>
#include <dlfcn.h>
#include <string.h>

#include <atomic>
#include <string_view>

#include "abi/tencache_guard.h"
#include "driver_functions.h"
#include "driver_library.h"

// The name stands for two functions; the header's macro would choose one.
#undef cuGetProcAddress

namespace tencache::guard {
namespace {

// The first form is from before CUDA 12.0, the second has existed since then.
using Get = CUresult (*)(const char* name, void** entry, int version, cuuint64_t flags);
using GetWithStatus = CUresult (*)(const char* name, void** entry, int version, cuuint64_t flags,
                                   CUdriverProcAddressQueryResult* status);
constexpr int kGetHasStatus = 12000;
constexpr std::string_view kGetName = "cuGetProcAddress";
constexpr std::string_view kGetWithStatusName = "cuGetProcAddress_v2";

std::atomic<Get> g_get = nullptr;
std::atomic<GetWithStatus> g_get_with_status = nullptr;

CUresult get(const char* name, void** entry, int version, cuuint64_t flags);
CUresult get_with_status(const char* name, void** entry, int version, cuuint64_t flags,
                         CUdriverProcAddressQueryResult* status);

void* serve_get(void* real) {
  g_get.store(reinterpret_cast<Get>(real));
  return reinterpret_cast<void*>(&get);
}

void* serve_get_with_status(void* real) {
  g_get_with_status.store(reinterpret_cast<GetWithStatus>(real));
  return reinterpret_cast<void*>(&get_with_status);
}

void guard_entry(const char* name, void** entry, int version, cuuint64_t flags) {
  if (name == nullptr || entry == nullptr || *entry == nullptr) return;
  if (name == kGetWithStatusName || (name == kGetName && version >= kGetHasStatus)) {
    *entry = serve_get_with_status(*entry);
  } else if (name == kGetName) {
    *entry = serve_get(*entry);
  } else {
    *entry = guarded_entry(name, version, flags, *entry);
  }
}

CUresult get(const char* name, void** entry, int version, cuuint64_t flags) {
  Get real = g_get.load();
  if (real == nullptr) real = driver_function<Get>("cuGetProcAddress");
  if (real == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult result = real(name, entry, version, flags);
  if (result == CUDA_SUCCESS) guard_entry(name, entry, version, flags);
  return result;
}

CUresult get_with_status(const char* name, void** entry, int version, cuuint64_t flags,
                         CUdriverProcAddressQueryResult* status) {
  GetWithStatus real = g_get_with_status.load();
  if (real == nullptr) real = driver_function<GetWithStatus>("cuGetProcAddress_v2");
  if (real == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult result = real(name, entry, version, flags, status);
  if (result == CUDA_SUCCESS) guard_entry(name, entry, version, flags);
  return result;
}

bool is_of_driver(const void* function) {
  Dl_info library;
  if (dladdr(function, &library) == 0 || library.dli_fname == nullptr) return false;
  // basename() does not serve here, because the program may define it as well.
  const char* const slash = strrchr(library.dli_fname, '/');
  const std::string_view file = slash != nullptr ? slash + 1 : library.dli_fname;
  return file.starts_with("libcuda.so");
}

// The function to serve for a name of the driver's: the guard's, or the driver's own where the
// guard has none. Returns null where the lookup does not lead to the driver.
__attribute__((noinline)) void* find_guarded(void* library, const char* name) {
  if (library == RTLD_NEXT || library == RTLD_DEFAULT) return nullptr;
  void* const real = real_dlsym()(library, name);
  if (real == nullptr || !is_of_driver(real)) return nullptr;
  if (name == kGetWithStatusName) return serve_get_with_status(real);
  if (name == kGetName) return serve_get(real);
  return guarded_symbol(name, real);
}

bool is_driver_name(const char* name) {
  return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

}  // namespace
}  // namespace tencache::guard

// The last call must be a jump: dlsym(RTLD_NEXT) depends on its caller, which the C library reads
// from the return address (guard/CMakeLists.txt, and a test).
extern "C" TENCACHE_API void* dlsym(void* library, const char* name) noexcept {
  using namespace tencache::guard;
  if (is_driver_name(name)) {
    if (void* found = find_guarded(library, name)) return found;
  }
  return real_dlsym()(library, name);
}

// The driver's name. NOLINTNEXTLINE(readability-identifier-naming)
extern "C" TENCACHE_API CUresult cuGetProcAddress(const char* name, void** entry, int version,
                                                  cuuint64_t flags) {
  return tencache::guard::get(name, entry, version, flags);
}

extern "C" TENCACHE_API CUresult cuGetProcAddress_v2(const char* name, void** entry, int version,
                                                     cuuint64_t flags,
                                                     CUdriverProcAddressQueryResult* status) {
  return tencache::guard::get_with_status(name, entry, version, flags, status);
}
