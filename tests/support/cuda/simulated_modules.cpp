// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/simulated_modules.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

#include "support/cuda/handles.h"
#include "support/cuda/stream_table.h"

namespace tencache {
namespace {

constexpr std::string_view kMagic = "simulated cubin of sm_";
constexpr unsigned kThreadsMax = 1024;

}  // namespace

std::string simulated_image(int compute_capability, const std::vector<std::string>& kernels) {
  std::string image = std::string(kMagic) + std::to_string(compute_capability);
  for (const std::string& kernel : kernels) image += "\n" + kernel;
  return image;
}

void SimulatedModules::add_kernel(std::string_view name, SimulatedKernel kernel) {
  MutexLock lock(mutex_);
  kernels_.insert_or_assign(std::string(name), std::move(kernel));
}

int SimulatedModules::current_capability() {
  const CUdevice device = devices_.current_device();
  int major = 0;
  int minor = 0;
  (void)devices_.attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  (void)devices_.attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  return major * 10 + minor;
}

CUresult SimulatedModules::load(CUmodule* module, const void* image) {
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::string_view text(static_cast<const char*>(image));
  if (!text.starts_with(kMagic)) return CUDA_ERROR_INVALID_IMAGE;
  std::istringstream lines{std::string(text.substr(kMagic.size()))};
  int capability = 0;
  lines >> capability;
  if (capability != current_capability()) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  std::vector<std::string> names;
  for (std::string name; lines >> name;) names.push_back(name);
  MutexLock lock(mutex_);
  *module = handle_of<CUmodule>(++last_name_);
  modules_[*module] = {devices_.current_device(), std::move(names)};
  return CUDA_SUCCESS;
}

CUresult SimulatedModules::unload(CUmodule module) {
  MutexLock lock(mutex_);
  if (modules_.erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  std::erase_if(functions_, [module](const auto& entry) { return entry.second.module == module; });
  return CUDA_SUCCESS;
}

CUresult SimulatedModules::find_function(CUfunction* function, CUmodule module, const char* name) {
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(mutex_);
  const auto loaded = modules_.find(module);
  if (loaded == modules_.end()) return CUDA_ERROR_INVALID_HANDLE;
  const auto kernel = kernels_.find(name);
  if (std::ranges::count(loaded->second.kernels, name) == 0 || kernel == kernels_.end()) {
    return CUDA_ERROR_NOT_FOUND;
  }
  *function = handle_of<CUfunction>(++last_name_);
  functions_[*function] = {module, loaded->second.device, kernel->first, kernel->second};
  return CUDA_SUCCESS;
}

CUresult SimulatedModules::function_name(const char** name, CUfunction function) {
  MutexLock lock(mutex_);
  const auto found = functions_.find(function);
  if (found == functions_.end()) return CUDA_ERROR_INVALID_HANDLE;
  *name = found->second.name.c_str();
  return CUDA_SUCCESS;
}

CUresult SimulatedModules::parameter(CUfunction function, size_t index, size_t* offset,
                                     size_t* bytes) {
  MutexLock lock(mutex_);
  const auto found = functions_.find(function);
  if (found == functions_.end()) return CUDA_ERROR_INVALID_HANDLE;
  const std::vector<size_t>& sizes = found->second.kernel.parameter_bytes;
  if (offset == nullptr || index >= sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  // Each parameter begins at a multiple of eight bytes.
  *offset = 0;
  for (size_t before = 0; before < index; ++before) *offset += round_up(sizes[before], 8);
  if (bytes != nullptr) *bytes = sizes[index];
  return CUDA_SUCCESS;
}

// A kernel that only reads and writes memory takes the time that the memory takes.
uint64_t SimulatedModules::duration_ns(const SimulatedKernel::Ranges& ranges) const {
  if (config_.kernel_bytes_per_s == 0) return 0;
  uint64_t bytes = 0;
  for (const DeviceRange& range : ranges.device) bytes += range.bytes;
  return static_cast<uint64_t>(static_cast<double>(bytes) /
                               static_cast<double>(config_.kernel_bytes_per_s) * 1e9);
}

CUresult SimulatedModules::launch(CUfunction function, unsigned grid_x, unsigned grid_y,
                                  unsigned grid_z, unsigned block_x, unsigned block_y,
                                  unsigned block_z, unsigned /*shared_bytes*/, CUstream stream,
                                  void** parameters, void** extra) {
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x > kThreadsMax ||
      block_y != 1 || block_z != 1 || extra != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SimulatedKernel kernel;
  {
    MutexLock lock(mutex_);
    const auto found = functions_.find(function);
    if (found == functions_.end() || found->second.device != devices_.current_device()) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    kernel = found->second.kernel;
  }
  if (!kernel.parameter_bytes.empty() && parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SimulatedLaunch launch{grid_x, block_x, {}};
  for (size_t index = 0; index < kernel.parameter_bytes.size(); ++index) {
    const char* value = static_cast<const char*>(parameters[index]);
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    launch.values.emplace_back(value, value + kernel.parameter_bytes[index]);
  }
  SimulatedKernel::Ranges ranges = kernel.ranges(launch);
  for (const DeviceRange& range : ranges.either) {
    (host_.is_registered(range, devices_.current_device()) ? ranges.host : ranges.device)
        .push_back(range);
  }
  std::erase_if(ranges.device, [](const DeviceRange& range) { return range.bytes == 0; });
  const uint64_t takes_ns = duration_ns(ranges);
  auto body = [run = std::move(kernel.run), launch = std::move(launch)] { run(launch); };
  return streams_.launch(stream, {.touches = std::move(ranges.device),
                                  .run = std::move(body),
                                  .duration_ns = takes_ns,
                                  .registered = std::move(ranges.host)});
}

std::string SimulatedModules::leaks() const {
  MutexLock lock(mutex_);
  std::string text;
  for (const auto& [handle, module] : modules_) {
    text += "a module of " + std::to_string(module.kernels.size()) + " kernels\n";
  }
  return text;
}

}  // namespace tencache
