// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/loaded_kernel.h"

#include <algorithm>
#include <string>

#include "platform/cuda/call_scope.h"
#include "platform/cuda/driver_use.h"

namespace tencache {
namespace {

Result<int> attribute_of(const Gpu& gpu, CUdevice_attribute attribute) {
  int value = 0;
  const CUresult result = gpu.driver().cuDeviceGetAttribute(&value, attribute, gpu.device());
  TENCACHE_RETURN_IF_ERROR(cuda_status(gpu.driver(), result, "Cannot query the GPU"));
  return value;
}

}  // namespace

Result<std::unique_ptr<LoadedKernel>> LoadedKernel::create(const Gpu& gpu, const NvrtcApi& nvrtc,
                                                           const char* name, const char* text,
                                                           const char* what) {
  TENCACHE_RETURN_IF_ERROR(driver_use_status());
  // If a later step fails, the destructor undoes the earlier ones.
  std::unique_ptr<LoadedKernel> kernel(new LoadedKernel(gpu, what));
  TENCACHE_RETURN_IF_ERROR(kernel->load(nvrtc, name, text));
  return kernel;
}

Status LoadedKernel::load(const NvrtcApi& nvrtc, const char* name, const char* text) {
  const Result<int> major = attribute_of(gpu_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  const Result<int> minor = attribute_of(gpu_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  const Result<int> count = attribute_of(gpu_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  TENCACHE_RETURN_IF_ERROR(major.status());
  TENCACHE_RETURN_IF_ERROR(minor.status());
  TENCACHE_RETURN_IF_ERROR(count.status());
  multiprocessors_ = static_cast<unsigned>(std::max(count.value(), 1));
  const Result<CompiledKernel> compiled =
      compile_kernel(nvrtc, {name, text, major.value() * 10 + minor.value()});
  TENCACHE_RETURN_IF_ERROR(compiled.status());
  const DriverApi& driver = gpu_.driver();
  const CallScope scope(driver, gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  TENCACHE_RETURN_IF_ERROR(
      cuda_status(driver, driver.cuModuleLoadData(&module_, compiled.value().image.data()),
                  std::string("Cannot load the kernel that ") + what_));
  return cuda_status(driver, driver.cuModuleGetFunction(&function_, module_, name),
                     std::string("Cannot find the kernel that ") + what_);
}

LoadedKernel::~LoadedKernel() {
  if (!may_call_driver() || module_ == nullptr) return;
  const CallScope scope(gpu_.driver(), gpu_.context());
  if (scope.status().is_ok()) (void)gpu_.driver().cuModuleUnload(module_);
}

Status LoadedKernel::launch(CUstream stream, unsigned blocks, unsigned threads,
                            const void* parameter) const {
  void* parameters[] = {const_cast<void*>(parameter)};
  return gpu_.call(std::string("Cannot launch the kernel that ") + what_,
                   [&](const DriverApi& driver) {
                     return driver.cuLaunchKernel(function_, blocks, 1, 1, threads, 1, 1, 0, stream,
                                                  static_cast<void**>(parameters), nullptr);
                   });
}

}  // namespace tencache
