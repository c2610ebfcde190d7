// SPDX-License-Identifier: Apache-2.0
#include "abi/enable.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "abi/exit_report.h"
#include "abi/tencache.h"
#include "base/log.h"
#include "base/shown_text.h"

namespace tencache {
namespace {

constexpr const char* kShimPrefix = "libtencache_torch-";
constexpr const char* kCudaShimPrefix = "libtencache_torch_cuda-";
constexpr const char* kLibrarySuffix = ".so";

struct TorchVersion {
  std::string minor;  // "2.11"
  std::string text;   // "2.11.1"
};

/// The shim for the memory of this program's GPUs. If `name` is empty, `reason` says why.
struct CudaShim {
  std::string name = {};
  std::string reason = {};
  bool has_gpu = false;
};

/// Returns null if the process has no such library. The library is never closed, as torch never
/// leaves a process.
void* loaded_library(const std::string& name) {
  return dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
}

template <typename Function>
Function function_of(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

/// The folder with all libraries of the package. The library with this code lies in it, too.
std::filesystem::path package_folder() {
  Dl_info own = {};
  dladdr(reinterpret_cast<void*>(&enable), &own);
  return std::filesystem::path(own.dli_fname != nullptr ? own.dli_fname : "").parent_path();
}

/// What stands between prefix and suffix in the names of the folder's files, sorted.
std::vector<std::string> names_between(const std::filesystem::path& folder,
                                       const std::string& prefix, const std::string& suffix) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    found.push_back(name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()));
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (size_t index = 0; index < words.size(); ++index) {
    if (index > 0) text += index + 1 < words.size() ? ", " : " and ";
    text += words[index];
  }
  return text;
}

Result<TorchVersion> loaded_torch() {
  void* const torch = loaded_library("libtorch_cpu.so");
  if (torch == nullptr) {
    return Status(StatusCode::kFailedPrecondition,
                  "There is no libtorch in this process (libtorch_cpu.so is not loaded), so there "
                  "is nothing to put tencache under. Link the program with libtorch; one that is "
                  "linked with libtorch statically cannot be served.");
  }
  const auto version = function_of<uint64_t (*)()>(torch, "aoti_torch_abi_version");
  if (version == nullptr) {
    return Status(StatusCode::kFailedPrecondition,
                  "The libtorch of this process does not tell its version, so it is too old for "
                  "tencache. Build the program with a newer one.");
  }
  // The version is [major][minor][patch], a byte each from the top (torch/headeronly/version.h).
  const uint64_t packed = version();
  const std::string minor = std::to_string(packed >> 56) + "." + std::to_string(packed >> 48 & 255);
  return TorchVersion{minor, minor + "." + std::to_string(packed >> 40 & 255)};
}

Status require_shim(const std::filesystem::path& folder, const TorchVersion& torch) {
  const std::vector<std::string> minors = names_between(folder, kShimPrefix, kLibrarySuffix);
  if (std::find(minors.begin(), minors.end(), torch.minor) != minors.end()) return Status::ok();
  if (minors.empty()) {
    return {
        StatusCode::kFailedPrecondition,
        "No libtencache_torch-*.so lies in " + shown(folder.string()) +
            ", beside libtencache.so, so tencache supports no torch here. Use the libraries "
            "where the package has them; `tencache cmake-dir` and `tencache preload` name them."};
  }
  return {StatusCode::kFailedPrecondition, "This tencache supports torch " + listed(minors) +
                                               ", but this program runs with torch " + torch.text +
                                               ". Build it with a torch that is supported, or "
                                               "look for another version of tencache."};
}

CudaShim find_cuda_shim(const std::filesystem::path& folder, const TorchVersion& torch) {
  void* const c10_cuda = loaded_library("libc10_cuda.so");
  if (c10_cuda == nullptr) {
    return {.reason = "this program is not linked with PyTorch's libraries for CUDA"};
  }
  // c10::cuda::device_count(), which tells what torch will see.
  const auto device_count =
      function_of<signed char (*)()>(c10_cuda, "_ZN3c104cuda12device_countEv");
  if (device_count == nullptr || device_count() <= 0) {
    return {.reason = "torch sees no GPU (no NVIDIA driver, or CUDA_VISIBLE_DEVICES hides them)"};
  }
  const std::string prefix = kCudaShimPrefix + torch.minor + "-cu";
  const std::vector<std::string> majors = names_between(folder, prefix, kLibrarySuffix);
  for (const std::string& major : majors) {
    if (loaded_library("libcudart.so." + major) == nullptr) continue;
    return {.name = prefix + major + kLibrarySuffix, .has_gpu = true};
  }
  const std::string others = majors.empty() ? "" : ", only with CUDA " + listed(majors);
  return {.reason = "this tencache has no library for torch " + torch.minor +
                    " with the CUDA of this program" + others,
          .has_gpu = true};
}

/// Settles the option backend and returns the name of the library to install.
Result<std::string> choose_shim(Runtime& runtime, const std::filesystem::path& folder,
                                const TorchVersion& torch) {
  const std::string on_cpu = kShimPrefix + torch.minor + kLibrarySuffix;
  const std::string backend = runtime.option_text("backend");
  if (backend == "cpu") return on_cpu;
  const CudaShim on_cuda = find_cuda_shim(folder, torch);
  if (!on_cuda.name.empty()) {
    TENCACHE_RETURN_IF_ERROR(runtime.set_option("backend", "cuda"));
    return on_cuda.name;
  }
  if (backend == "cuda") {
    return Status(StatusCode::kUnavailable,
                  "backend=cuda was asked for, but no GPU can be used here: " + on_cuda.reason +
                      ". Leave the backend at auto, or use cpu to keep tensors in DRAM under a "
                      "budget.");
  }
  if (on_cuda.has_gpu) {
    TENCACHE_LOG_WARNING(
        "the budget is that of tensors in DRAM, although there is a GPU: %s. Use backend=cpu if "
        "that is what you want.",
        on_cuda.reason.c_str());
  }
  TENCACHE_RETURN_IF_ERROR(runtime.set_option("backend", "cpu"));
  return on_cpu;
}

Status install(const std::filesystem::path& library) {
  void* const shim = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (shim == nullptr) {
    return {StatusCode::kFailedPrecondition,
            shown(library.string()) + " cannot be loaded: " + shown(dlerror()) +
                ". It needs the libraries of PyTorch's own builds, under the names they have "
                "there."};
  }
  const char* const name = library.filename().string().starts_with(kCudaShimPrefix)
                               ? "tencache_torch_cuda_install"
                               : "tencache_torch_install";
  const auto entry = function_of<int (*)(tencache_error*)>(shim, name);
  if (entry == nullptr) {
    return {StatusCode::kFailedPrecondition, shown(library.string()) + " has no function " + name +
                                                 ": it is of another tencache. Install "
                                                 "the package again."};
  }
  tencache_error error = {};
  const int code = entry(&error);
  return code == TENCACHE_OK ? Status::ok() : Status(static_cast<StatusCode>(code), error.message);
}

Status refuse_stored_period(Runtime& runtime) {
  const std::string path = runtime.option_text("learn_from");
  if (path == "off") return Status::ok();
  return {StatusCode::kInvalidArgument,
          "Option learn_from does not take the value '" + shown(path) +
              "' here: only the Python package reads such files. Leave it out; a C++ program "
              "learns anew in each run."};
}

}  // namespace

Status enable(Runtime& runtime) {
  static bool is_enabled = false;
  if (is_enabled) return Status::ok();
  const Result<TorchVersion> torch = loaded_torch();
  if (!torch.is_ok()) return torch.status();
  const std::filesystem::path folder = package_folder();
  TENCACHE_RETURN_IF_ERROR(require_shim(folder, torch.value()));
  TENCACHE_RETURN_IF_ERROR(refuse_stored_period(runtime));
  TENCACHE_RETURN_IF_ERROR(settle_output_files(runtime));
  const Result<std::string> shim = choose_shim(runtime, folder, torch.value());
  if (!shim.is_ok()) return shim.status();
  TENCACHE_RETURN_IF_ERROR(install(folder / shim.value()));
  report_at_exit(torch.value().text);
  is_enabled = true;
  return Status::ok();
}

}  // namespace tencache
