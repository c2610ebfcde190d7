// SPDX-License-Identifier: Apache-2.0
//
// Last errors are per thread. Kernels are registered while libraries load, before any launch, so
// the table of their names needs no lock of its own.
#include "errors.h"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace emulated_gpu::runtime {

namespace {
thread_local cudaError_t last = cudaSuccess;

struct Kernel {
  const void* function;
  const char* name;
};
std::vector<Kernel>& kernels() {
  static auto* const all = new std::vector<Kernel>;
  return *all;
}
std::string kernel_name(const void* function) {
  for (const Kernel& kernel : kernels()) {
    if (kernel.function != function) continue;
    int status = 0;
    char* text = abi::__cxa_demangle(kernel.name, nullptr, nullptr, &status);
    return status == 0 ? text : kernel.name;
  }
  return "(unknown kernel)";
}
}  // namespace

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last = error;
  return error;
}
cudaError_t note(CUresult result) { return note(static_cast<cudaError_t>(result)); }
cudaError_t last_error() { return last; }
cudaError_t take_last_error() {
  const cudaError_t taken = last;
  last = cudaSuccess;
  return taken;
}
void register_kernel(const void* function, const char* name) {
  kernels().push_back({function, name});
}
cudaError_t refuse_kernel(const void* function) {
  const std::string name = kernel_name(function);
  fprintf(stderr, "emulated GPU: there is no stand-in for the kernel %s\n", name.c_str());
  if (getenv("EMULATED_GPU_ABORT") != nullptr) abort();
  return note(cudaErrorNotSupported);
}
cudaError_t refuse(const char* what) {
  fprintf(stderr, "emulated GPU: %s is not emulated\n", what);
  if (getenv("EMULATED_GPU_ABORT") != nullptr) abort();
  return note(cudaErrorNotSupported);
}
}  // namespace emulated_gpu::runtime
