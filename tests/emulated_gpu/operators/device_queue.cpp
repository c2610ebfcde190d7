// SPDX-License-Identifier: Apache-2.0
// Tasks of a stream and their random numbers. EMULATED_GPU_SYNC=1 waits after each task. The
// program's threads queue; the streams' threads run tasks.
#include "operators/device_queue.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAStream.h>

#include <string>

namespace tencache {

namespace {

const bool kSync = getenv("EMULATED_GPU_SYNC") != nullptr;

// Queues a callable as a kernel.
struct Work {
  std::string name;
  std::function<void()> run;
};

}  // namespace

void queue(const char* name, const Ranges& ranges, std::function<void()> run,
           c10::DeviceIndex device) {
  auto* work = new Work{name, std::move(run)};
  const EmulatedTask task = {name,
                             [](void* state) {
                               auto* todo = static_cast<Work*>(state);
                               try {
                                 const InsideGuard guard;
                                 todo->run();
                               } catch (const std::exception& error) {
                                 fprintf(stderr, "emulated GPU: %s failed on the device: %s\n",
                                         todo->name.c_str(), error.what());
                                 emulated_gpu_device_failed();
                               }
                             },
                             [](void* state) { delete static_cast<Work*>(state); }, work};
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  const CUresult result =
      emulated_gpu_launch(stream.stream(), &task, ranges.all().data(), ranges.all().size());
  C10_CUDA_CHECK(static_cast<cudaError_t>(result));
  if (kSync) stream.synchronize();
}

// Makes the CPU generator of one task when the task runs: while a CUDA graph is captured,
// seed and offset are in device memory, and another one with each replay.
MakeGenerator device_generator(const IValue& given, c10::DeviceIndex device, Ranges* ranges) {
  std::optional<at::Generator> generator;
  if (given.isGenerator()) generator = given.toGenerator();
  auto* cuda = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      generator, at::cuda::detail::getDefaultCUDAGenerator(device));
  at::PhiloxCudaState state;
  {
    const std::lock_guard<std::mutex> lock(cuda->mutex_);
    state = cuda->philox_cuda_state(4);
  }
  if (state.captured_) {
    ranges->add(state.seed_.ptr, sizeof(int64_t), false);
    ranges->add(state.offset_.ptr, sizeof(int64_t), false);
  }
  return [state] {
    const uint64_t first =
        state.captured_ ? static_cast<uint64_t>(*state.seed_.ptr) : state.seed_.val;
    const uint64_t second =
        state.captured_ ? static_cast<uint64_t>(*state.offset_.ptr) + state.offset_intragraph_
                        : state.offset_.val;
    // The same seed and offset give the same numbers, as with Philox.
    uint64_t seed = first * 0x9E3779B97F4A7C15ull + second * 0xBF58476D1CE4E5B9ull;
    seed ^= seed >> 29;
    return at::detail::createCPUGenerator(seed);
  };
}

}  // namespace tencache
