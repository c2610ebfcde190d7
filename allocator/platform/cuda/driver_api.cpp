// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/driver_api.h"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "platform/cuda/driver_use.h"

namespace tencache {
namespace {

constexpr char kDriverLibrary[] = "libcuda.so.1";

using GetProcAddress = decltype(&::cuGetProcAddress);

// Finds one function of the table. POSIX lets a void* hold the address of a function.
template <typename Function>
Status find_function(GetProcAddress get, const char* name, Function* function) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult result =
      get(name, &address, kDriverApiVersion, CU_GET_PROC_ADDRESS_DEFAULT, &found);
  if (result == CUDA_SUCCESS && found == CU_GET_PROC_ADDRESS_SUCCESS && address != nullptr) {
    *function = reinterpret_cast<Function>(address);
    return Status::ok();
  }
  return {StatusCode::kUnavailable,
          std::string("The CUDA driver has no ") + name +
              (found == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                   ? " of CUDA 12.0. Install a driver of version 525 or newer."
                   : ". Install NVIDIA's driver, version 525 or newer.")};
}

// Finds a function past a preloaded guard (abi/tencache_guard.h). The guard serves functions that
// pass our own gate first; calls of the core itself must not pass that gate.
void* find_unguarded(void* library, const char* name) {
  using Find = decltype(&dlsym);
  const auto find = reinterpret_cast<Find>(dlsym(RTLD_DEFAULT, "tencache_guard_find"));
  return find != nullptr ? find(library, name) : dlsym(library, name);
}

StatusCode status_code(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
      return StatusCode::kOk;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return StatusCode::kOutOfMemory;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_HANDLE:
      return StatusCode::kInvalidArgument;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return StatusCode::kUnavailable;
    default:
      return StatusCode::kIoError;
  }
}

}  // namespace

bool has_nvidia_device(const std::string& root) {
  constexpr std::string_view kVendor = "0x10de";
  constexpr std::string_view kDisplayClass = "0x03";  // NVIDIA also makes chipsets
  const auto begins_with = [](const std::filesystem::path& path, std::string_view text) {
    std::string word;
    return std::ifstream(path) >> word && word.starts_with(text);
  };
  std::error_code error;
  // The driver makes the first two; dxg is a GPU of Windows, in its subsystem for Linux.
  for (const char* name : {"/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"}) {
    if (std::filesystem::exists(root + name, error)) return true;
  }
  std::filesystem::directory_iterator device(root + "/sys/bus/pci/devices", error);
  for (; !error && device != std::filesystem::directory_iterator(); device.increment(error)) {
    if (begins_with(device->path() / "vendor", kVendor) &&
        begins_with(device->path() / "class", kDisplayClass)) {
      return true;
    }
  }
  return false;
}

Result<DriverApi> load_driver() {
  TENCACHE_RETURN_IF_ERROR(driver_use_status());
  // The library is never closed: the driver's own threads and exit handlers live as long as the
  // process.
  void* library = dlopen(kDriverLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string reason = dlerror();
    return Status(StatusCode::kUnavailable,
                  has_nvidia_device("")
                      ? "There is no CUDA driver here: " + reason +
                            ". Install NVIDIA's driver, or give the container the GPU (--gpus all)."
                      : "No NVIDIA GPU is visible here. The cpu backend needs none.");
  }
  auto get = reinterpret_cast<GetProcAddress>(find_unguarded(library, "cuGetProcAddress_v2"));
  if (get == nullptr) {
    return Status(StatusCode::kUnavailable,
                  std::string(kDriverLibrary) +
                      " is older than CUDA 12.0. Install a driver of version 525 or newer.");
  }
  DriverApi driver;
#define TENCACHE_CUDA_FIND(name) TENCACHE_RETURN_IF_ERROR(find_function(get, #name, &driver.name));
  TENCACHE_CUDA_FUNCTIONS(TENCACHE_CUDA_FIND)
#undef TENCACHE_CUDA_FIND
  // Every function was found, or this line would not be reached.
  // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage)
  const CUresult result = driver.cuInit(0);
  const Status started = cuda_status(driver, result, "Cannot start the CUDA driver");
  if (!started.is_ok()) return Status(StatusCode::kUnavailable, started.message());
  // The watch begins only now, because libcuda has registered its own exit handlers by then.
  TENCACHE_RETURN_IF_ERROR(watch_driver_use());
  return driver;
}

Status cuda_status(const DriverApi& driver, CUresult result, std::string_view what) {
  if (result == CUDA_SUCCESS) return Status::ok();
  const char* name = nullptr;
  const char* text = nullptr;
  std::string message(what);
  if (result == CUDA_ERROR_DEINITIALIZED) {
    end_driver_use();
    return {status_code(result), message + ": the process is exiting, the driver is shut down."};
  }
  // Both calls fail, and leave null, for numbers that the driver does not know.
  if (driver.cuGetErrorName(result, &name) == CUDA_SUCCESS && name != nullptr) {
    message += std::string(": ") + name;
  } else {
    message += ": CUDA error " + std::to_string(static_cast<int>(result));
  }
  if (driver.cuGetErrorString(result, &text) == CUDA_SUCCESS && text != nullptr) {
    message += std::string(" (") + text + ")";
  }
  return {status_code(result), message + "."};
}

}  // namespace tencache
