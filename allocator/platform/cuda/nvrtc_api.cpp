// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/nvrtc_api.h"

#include <dlfcn.h>

#include <array>

namespace tencache {
namespace {

// The newest library comes first; the number is the version of CUDA.
constexpr std::array<const char*, 3> kNvrtcLibraries = {"libnvrtc.so.13", "libnvrtc.so.12",
                                                        "libnvrtc.so.11.2"};

// Returns null, with an error of dlopen, when no library can be opened. The most telling error is
// that of `path`, else that of the newest library.
void* open_library(const std::string& path, std::string* error) {
  for (const char* name : kNvrtcLibraries) {
    if (void* loaded = dlopen(name, RTLD_NOW | RTLD_NOLOAD); loaded != nullptr) return loaded;
  }
  if (!path.empty()) {
    if (void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); opened != nullptr) {
      return opened;
    }
    *error = dlerror();
  }
  for (const char* name : kNvrtcLibraries) {
    if (void* opened = dlopen(name, RTLD_NOW | RTLD_LOCAL); opened != nullptr) return opened;
    const char* reason = dlerror();
    if (error->empty() && reason != nullptr) *error = reason;
  }
  return nullptr;
}

// Finds one function of the table. POSIX lets a void* hold the address of a function.
template <typename Function>
Status find_nvrtc_function(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return Status::ok();
  return {StatusCode::kUnavailable,
          std::string("NVRTC has no ") + name + ". Install the NVRTC of CUDA 12 or newer."};
}

Status status_of(const NvrtcApi& nvrtc, NvrtcResult result, const std::string& what) {
  if (result == kNvrtcSuccess) return Status::ok();
  StatusCode code = StatusCode::kInvalidArgument;
  if (result == kNvrtcOutOfMemory) code = StatusCode::kOutOfMemory;
  if (result == kNvrtcInvalidOption) code = StatusCode::kUnavailable;
  const char* text = nvrtc.error_string(result);
  return {code,
          what + ": " + (text != nullptr ? text : "NVRTC error " + std::to_string(result)) + "."};
}

// The owner of a program, which destroys it.
class Program {
 public:
  explicit Program(const NvrtcApi& nvrtc) : nvrtc_(nvrtc) {}
  ~Program() {
    if (program_ != nullptr) nvrtc_.destroy_program(&program_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  NvrtcProgram* place() { return &program_; }
  NvrtcProgram get() const { return program_; }

 private:
  const NvrtcApi& nvrtc_;
  NvrtcProgram program_ = nullptr;
};

// The log of a compilation. Returns an empty string when there is none, or NVRTC does not give it.
std::string log_of(const NvrtcApi& nvrtc, NvrtcProgram program) {
  size_t bytes = 0;
  if (nvrtc.log_size(program, &bytes) != kNvrtcSuccess || bytes <= 1) return "";
  std::string text(bytes, '\0');
  if (nvrtc.log(program, text.data()) != kNvrtcSuccess) return "";
  text.resize(bytes - 1);  // without the zero at its end
  return text;
}

}  // namespace

Result<NvrtcApi> load_nvrtc(const std::string& path) {
  std::string error;
  // The library is never closed: PyTorch may use it too.
  void* library = open_library(path, &error);
  if (library == nullptr) {
    return Status(StatusCode::kUnavailable,
                  "There is no NVRTC here: " + error +
                      ". Install PyTorch for CUDA, or pip install nvidia-cuda-nvrtc.");
  }
  NvrtcApi api;
  TENCACHE_RETURN_IF_ERROR(find_nvrtc_function(library, "nvrtcGetErrorString", &api.error_string));
  TENCACHE_RETURN_IF_ERROR(find_nvrtc_function(library, "nvrtcCreateProgram", &api.create_program));
  TENCACHE_RETURN_IF_ERROR(
      find_nvrtc_function(library, "nvrtcDestroyProgram", &api.destroy_program));
  TENCACHE_RETURN_IF_ERROR(
      find_nvrtc_function(library, "nvrtcCompileProgram", &api.compile_program));
  TENCACHE_RETURN_IF_ERROR(find_nvrtc_function(library, "nvrtcGetCUBINSize", &api.cubin_size));
  TENCACHE_RETURN_IF_ERROR(find_nvrtc_function(library, "nvrtcGetCUBIN", &api.cubin));
  TENCACHE_RETURN_IF_ERROR(find_nvrtc_function(library, "nvrtcGetProgramLogSize", &api.log_size));
  TENCACHE_RETURN_IF_ERROR(find_nvrtc_function(library, "nvrtcGetProgramLog", &api.log));
  return api;
}

Result<CompiledKernel> compile_kernel(const NvrtcApi& nvrtc, const KernelText& kernel,
                                      std::span<const char* const> more_options) {
  const std::string what = std::string("Cannot compile ") + kernel.name + " for the GPU";
  Program program(nvrtc);
  TENCACHE_RETURN_IF_ERROR(status_of(
      nvrtc, nvrtc.create_program(program.place(), kernel.text, kernel.name, 0, nullptr, nullptr),
      what));
  const std::string arch = "-arch=sm_" + std::to_string(kernel.compute_capability);
  std::vector<const char*> options = {arch.c_str(), "-std=c++17"};
  options.insert(options.end(), more_options.begin(), more_options.end());
  const Status compiled = status_of(
      nvrtc, nvrtc.compile_program(program.get(), static_cast<int>(options.size()), options.data()),
      what + " (" + arch + ")");
  CompiledKernel result;
  result.log = log_of(nvrtc, program.get());
  if (!compiled.is_ok()) {
    if (result.log.empty()) return compiled;
    return Status(compiled.code(), compiled.clause() + ": " + result.log);
  }
  size_t bytes = 0;
  TENCACHE_RETURN_IF_ERROR(status_of(nvrtc, nvrtc.cubin_size(program.get(), &bytes), what));
  result.image.resize(bytes);
  TENCACHE_RETURN_IF_ERROR(status_of(nvrtc, nvrtc.cubin(program.get(), result.image.data()), what));
  return result;
}

}  // namespace tencache
