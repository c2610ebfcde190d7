// SPDX-License-Identifier: Apache-2.0
//
// Kernels: registered and refused by name, because their code cannot run here. What an operator's
// stand-in does runs through emulated_gpu_launch, as a task on the stream.
#include <cstring>
#include <memory>
#include <vector>

#include "capture.h"
#include "driver_table.h"
#include "errors.h"

using namespace emulated_gpu::runtime;

static CUresult launch_now(CUstream stream, const EmulatedTask* task, const EmulatedRange* ranges,
                           size_t count);
namespace {
struct KeptTask {
  EmulatedTask task;
  std::vector<EmulatedRange> ranges;
  ~KeptTask() { task.destroy(task.state); }
};
}  // namespace
EMULATED_PUBLIC CUresult emulated_gpu_launch(void* stream, const EmulatedTask* task,
                                             const EmulatedRange* ranges, size_t count) {
  const auto in = static_cast<CUstream>(stream);
  if (capture_of(in) == nullptr) return launch_now(in, task, ranges, count);
  auto kept = std::make_shared<KeptTask>(*task, std::vector<EmulatedRange>(ranges, ranges + count));
  return queue(in, [kept](CUstream into) {
    const EmulatedTask again = {
        kept->task.name,
        [](void* state) {
          const EmulatedTask& real = (*static_cast<std::shared_ptr<KeptTask>*>(state))->task;
          real.run(real.state);
        },
        [](void* state) { delete static_cast<std::shared_ptr<KeptTask>*>(state); },
        new std::shared_ptr<KeptTask>(kept)};
    return launch_now(into, &again, kept->ranges.data(), kept->ranges.size());
  });
}
static CUresult launch_now(CUstream stream, const EmulatedTask* task, const EmulatedRange* ranges,
                           size_t count) {
  const Driver& d = ready();
  const size_t bytes = offsetof(EmulatedParameters, addresses) + (count + 1) * sizeof(uint64_t);
  std::vector<uint64_t> block((bytes + 7) / 8);
  auto* parameters = reinterpret_cast<EmulatedParameters*>(block.data());
  parameters->task = *task;
  parameters->ranges = ranges;
  parameters->count = count;
  for (size_t i = 0; i < count; ++i) parameters->addresses[i] = ranges[i].address;
  size_t size = bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  return d.cuLaunchKernel(d.function(task->name), 1, 1, 1, 1, 1, 1, 0,
                          static_cast<CUstream>(stream), nullptr, extra);
}

EMULATED_PUBLIC void emulated_gpu_device_failed() { driver().fail(CUDA_ERROR_LAUNCH_FAILED); }

EMULATED_PUBLIC void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
EMULATED_PUBLIC void __cudaRegisterFatBinaryEnd(void**) {}
EMULATED_PUBLIC void __cudaUnregisterFatBinary(void**) {}
EMULATED_PUBLIC void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int,
                                            void*, void*, void*, void*, int*) {
  register_kernel(host, name);
}
EMULATED_PUBLIC void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EMULATED_PUBLIC char __cudaInitModule(void**) { return 0; }
struct Dim {
  unsigned x, y, z;
};
EMULATED_PUBLIC unsigned __cudaPushCallConfiguration(Dim, Dim, size_t, void*) { return 0; }
EMULATED_PUBLIC cudaError_t __cudaPopCallConfiguration(Dim* grid, Dim* block, size_t* shared,
                                                       void* stream) {
  *grid = *block = {1, 1, 1};
  *shared = 0;
  *static_cast<void**>(stream) = nullptr;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t __cudaLaunchKernel(void* kernel, Dim, Dim, void**, size_t,
                                               cudaStream_t) {
  return refuse_kernel(kernel);
}
EMULATED_PUBLIC cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t,
                                             cudaStream_t) {
  return refuse_kernel(function);
}
EMULATED_PUBLIC cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**,
                                                        size_t, cudaStream_t) {
  return refuse_kernel(function);
}
EMULATED_PUBLIC cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function,
                                                void**) {
  return refuse_kernel(function);
}
EMULATED_PUBLIC cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*,
                                                                          int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                                   const void*, int,
                                                                                   size_t,
                                                                                   unsigned) {
  *blocks = 1;
  return cudaSuccess;
}
