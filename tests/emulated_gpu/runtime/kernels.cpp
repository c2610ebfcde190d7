// SPDX-License-Identifier: Apache-2.0
//
// Kernels and device variables. They are registered while libraries load, and refused by name,
// because their code cannot run here; launching such a kernel fails the context. Only the kernel of
// torch.cuda._sleep() has a stand-in, which needs no memory. An operator's stand-in runs through
// emulated_gpu_launch, as a task on the stream. Any thread may call.
#include <cxxabi.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "contexts.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

namespace {

// Names of device code, by its address on the host. The names live as long as the libraries.
class DeviceNames {
 public:
  static DeviceNames& instance() {
    static auto* const made = new DeviceNames;
    return *made;
  }
  void add(const void* on_host, const char* name) {
    const std::lock_guard lock(mutex_);
    names_[on_host] = name;
  }
  std::string find(const void* on_host) const {
    const std::lock_guard lock(mutex_);
    const auto found = names_.find(on_host);
    if (found == names_.end()) return "of unknown name";
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> text(
        abi::__cxa_demangle(found->second, nullptr, nullptr, &status), &free);
    return text != nullptr ? text.get() : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, const char*> names_;
};

cudaError_t refuse_about_kernel(const char* what, const void* function) {
  return refuse(what + (" of the kernel " + DeviceNames::instance().find(function)));
}

// Launches the task. Destroys it if it is refused.
CUresult launch(CUstream stream, const EmulatedTask& task, const EmulatedRange* ranges,
                size_t count) {
  const Driver& d = ready();
  const size_t bytes = offsetof(EmulatedParameters, addresses) + (count + 1) * sizeof(uint64_t);
  std::vector<uint64_t> block((bytes + 7) / 8);
  auto* parameters = reinterpret_cast<EmulatedParameters*>(block.data());
  parameters->task = task;
  parameters->ranges = ranges;
  parameters->count = count;
  for (size_t i = 0; i < count; ++i) parameters->addresses[i] = ranges[i].address;
  size_t size = bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  const CUresult result =
      d.cuLaunchKernel(d.function(task.name), 1, 1, 1, 1, 1, 1, 0, stream, nullptr, extra);
  if (result != CUDA_SUCCESS) task.destroy(task.state);
  return result;
}

// The name of the kernel of torch.cuda._sleep(cycles), for which the device's clock has 1 GHz.
constexpr const char* kSpinKernel = "at::cuda::(anonymous namespace)::spin_kernel(long)";

void spin(void* cycles) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(reinterpret_cast<intptr_t>(cycles)));
}
void keep(void*) {}

cudaError_t launch_by_code(const void* function, void** arguments, cudaStream_t stream) {
  const std::string name = DeviceNames::instance().find(function);
  if (name != kSpinKernel) return refuse_kernel("the kernel " + name);
  const auto cycles = static_cast<intptr_t>(*static_cast<const int64_t*>(arguments[0]));
  const EmulatedTask task = {"spin_kernel", &spin, &keep, reinterpret_cast<void*>(cycles)};
  return note(launch(static_cast<CUstream>(stream), task, nullptr, 0));
}

// The configuration in <<<>>>, held between its two calls.
struct Configuration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  void* stream;
};
thread_local std::vector<Configuration> configurations;

}  // namespace

EMULATED_PUBLIC CUresult emulated_gpu_launch(void* stream, const EmulatedTask* task,
                                             const EmulatedRange* ranges, size_t count) {
  return launch(static_cast<CUstream>(stream), *task, ranges, count);
}

EMULATED_PUBLIC void emulated_gpu_device_failed(const char* why) {
  fprintf(stderr, "emulated GPU: %s\n", why);
  fail_device(why);
}

// ---- Calls of nvcc's code when a library is loaded and left. Fat binaries are ignored.

EMULATED_PUBLIC void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
EMULATED_PUBLIC void __cudaRegisterFatBinaryEnd(void**) {}
EMULATED_PUBLIC void __cudaUnregisterFatBinary(void**) {}
EMULATED_PUBLIC void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int,
                                            void*, void*, void*, void*, int*) {
  DeviceNames::instance().add(host, name);
}
EMULATED_PUBLIC void __cudaRegisterVar(void**, char* host, char*, const char* name, int, size_t,
                                       int, int) {
  DeviceNames::instance().add(host, name);
}
EMULATED_PUBLIC char __cudaInitModule(void**) { return 0; }

// ---- Calls of nvcc's code for <<<>>>. The handle of a kernel is its function on the host.

EMULATED_PUBLIC unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                                     void* stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
EMULATED_PUBLIC cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block,
                                                       size_t* shared_bytes, void* stream) {
  if (configurations.empty()) return note(cudaErrorMissingConfiguration);
  const Configuration& last = configurations.back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *static_cast<void**>(stream) = last.stream;
  configurations.pop_back();
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t __cudaLaunchKernel(void* kernel, dim3, dim3, void** arguments, size_t,
                                               cudaStream_t stream) {
  return launch_by_code(kernel, arguments, stream);
}

EMULATED_PUBLIC cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments,
                                             size_t, cudaStream_t stream) {
  return launch_by_code(function, arguments, stream);
}
EMULATED_PUBLIC cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3,
                                                        void** arguments, size_t,
                                                        cudaStream_t stream) {
  return launch_by_code(function, arguments, stream);
}
EMULATED_PUBLIC cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                                const void* function, void** arguments) {
  return launch_by_code(function, arguments, config->stream);
}
EMULATED_PUBLIC cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* function) {
  return refuse_about_kernel("cudaFuncGetAttributes", function);
}
EMULATED_PUBLIC cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int) {
  return refuse_about_kernel("cudaFuncSetAttribute", function);
}
EMULATED_PUBLIC cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*,
                                                                          const void* function, int,
                                                                          size_t) {
  return refuse_about_kernel("the occupancy", function);
}
EMULATED_PUBLIC cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int*, const void* function, int, size_t, unsigned) {
  return refuse_about_kernel("the occupancy", function);
}
EMULATED_PUBLIC cudaError_t cudaMemcpyToSymbol(const void* symbol, const void*, size_t, size_t,
                                               cudaMemcpyKind) {
  return refuse("the device variable " + DeviceNames::instance().find(symbol));
}
EMULATED_PUBLIC cudaError_t cudaGetSymbolAddress(void**, const void* symbol) {
  return refuse("the device variable " + DeviceNames::instance().find(symbol));
}
