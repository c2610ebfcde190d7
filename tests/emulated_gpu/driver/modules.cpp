// SPDX-License-Identifier: Apache-2.0
//
// Modules and kernels: those of the simulated driver, and those of the emulation.
#include <elf.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "driver/functions.h"
#include "driver/tasks.h"
#include "platform/cuda/copy_kernel.h"
#include "platform/cuda/device_hash.h"
#include "support/cuda/simulated_driver_parts.h"
#include "support/cuda/simulated_test_kernels.h"

namespace tencache {
namespace {

bool is_cubin(const void* image) { return memcmp(image, ELFMAG, SELFMAG) == 0; }

// The contents of a cubin, or of PTX text.
std::string_view text_of(const void* image) {
  if (!is_cubin(image)) return static_cast<const char*>(image);
  Elf64_Ehdr header;
  memcpy(&header, image, sizeof header);
  // The table of sections is the last thing in the file.
  return {static_cast<const char*>(image),
          header.e_shoff + uint64_t{header.e_shentsize} * header.e_shnum};
}

// The kernels with a stand-in whose names are in the image.
std::vector<std::string> kernels_of(const void* image) {
  const std::string_view file = text_of(image);
  std::vector<std::string> kernels;
  for (const char* name :
       {kDeviceHashKernelName, kDeviceCopyKernelName, kTestAddKernelName, kTestScaleKernelName}) {
    if (file.find(name) != std::string_view::npos) kernels.emplace_back(name);
  }
  return kernels;
}

}  // namespace

CUresult load_module(SimulatedDriver& driver, CUmodule* module, const void* image) {
  // PTX text begins with a comment.
  if (image == nullptr || (!is_cubin(image) && !text_of(image).starts_with("//"))) {
    return driver.api().cuModuleLoadData(module, image);
  }
  const int capability = driver.parts().modules.current_capability();
  return driver.api().cuModuleLoadData(module,
                                       simulated_image(capability, kernels_of(image)).c_str());
}

CUresult launch_kernel(SimulatedDriver& driver, CUfunction function, unsigned grid_x,
                       unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                       unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters,
                       void** extra) {
  if (name_of_emulated(function) == nullptr) {
    return driver.api().cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                       shared_bytes, stream, parameters, extra);
  }
  for (; extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra != CU_LAUNCH_PARAM_BUFFER_POINTER) continue;
    return launch_task(driver, *static_cast<const EmulatedParameters*>(extra[1]), stream);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult function_name(SimulatedDriver& driver, const char** name, CUfunction function) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = name_of_emulated(function);
  return *name != nullptr ? CUDA_SUCCESS : driver.parts().modules.function_name(name, function);
}

CUresult function_parameter(SimulatedDriver& driver, CUfunction function, size_t index,
                            size_t* offset, size_t* bytes) {
  if (name_of_emulated(function) != nullptr) return CUDA_ERROR_INVALID_VALUE;
  return driver.parts().modules.parameter(function, index, offset, bytes);
}

}  // namespace tencache
