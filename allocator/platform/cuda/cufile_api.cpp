// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/cufile_api.h"

#include <dlfcn.h>

namespace tencache {
namespace {

constexpr char kCuFileLibrary[] = "libcufile.so.0";

template <typename Function>
Status find_cufile_function(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return Status::ok();
  return {StatusCode::kUnavailable, std::string(kCuFileLibrary) + " has no " + name +
                                        ". Install the cuFile of CUDA 12 or newer."};
}

}  // namespace

Result<CuFileApi> load_cufile(const std::string& path) {
  void* library = dlopen(kCuFileLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr && !path.empty()) library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(kCuFileLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status(StatusCode::kUnavailable, std::string("There is no cuFile here: ") + dlerror() +
                                                ". Install nvidia-cufile.");
  }
  CuFileApi api;
  TENCACHE_RETURN_IF_ERROR(find_cufile_function(library, "cuFileDriverOpen", &api.open_driver));
  TENCACHE_RETURN_IF_ERROR(
      find_cufile_function(library, "cuFileDriverGetProperties", &api.get_properties));
  TENCACHE_RETURN_IF_ERROR(
      find_cufile_function(library, "cuFileHandleRegister", &api.register_handle));
  TENCACHE_RETURN_IF_ERROR(
      find_cufile_function(library, "cuFileHandleDeregister", &api.deregister_handle));
  TENCACHE_RETURN_IF_ERROR(
      find_cufile_function(library, "cuFileBufRegister", &api.register_buffer));
  TENCACHE_RETURN_IF_ERROR(
      find_cufile_function(library, "cuFileBufDeregister", &api.deregister_buffer));
  TENCACHE_RETURN_IF_ERROR(find_cufile_function(library, "cuFileRead", &api.read));
  return api;
}

}  // namespace tencache
