// SPDX-License-Identifier: Apache-2.0
//
// next_generator() mixes seed and offset of CUDA's generator into the seed of a CPU generator. Each
// task advances the offset by the same amount, however many numbers it draws: its own generator
// never runs out. Offsets are taken under the generator's mutex. Any thread may call.
#include "operators/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

namespace emulated_gpu::operators {

namespace {

constexpr uint64_t kOffsetOfTask = 4;  // Philox hands out four numbers at a time

uint64_t mixed(uint64_t seed, uint64_t offset) {
  uint64_t result = seed * 0x9E3779B97F4A7C15ull + offset * 0xBF58476D1CE4E5B9ull;
  result ^= result >> 29;
  return result;
}

}  // namespace

MakeGenerator next_generator(const IValue& given, c10::DeviceIndex device, Ranges* ranges) {
  std::optional<at::Generator> generator;
  if (given.isGenerator()) generator = given.toGenerator();
  auto* cuda = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      generator, at::cuda::detail::getDefaultCUDAGenerator(device));
  at::PhiloxCudaState state;
  {
    const std::lock_guard lock(cuda->mutex_);
    state = cuda->philox_cuda_state(kOffsetOfTask);
  }
  if (!state.captured_) {
    return [seed = state.seed_.val, offset = state.offset_.val] {
      return at::detail::createCPUGenerator(mixed(seed, offset));
    };
  }
  ranges->add(state.seed_.ptr, sizeof(int64_t), false);
  ranges->add(state.offset_.ptr, sizeof(int64_t), false);
  return [state] {
    return at::detail::createCPUGenerator(
        mixed(static_cast<uint64_t>(*state.seed_.ptr),
              static_cast<uint64_t>(*state.offset_.ptr) + state.offset_intragraph_));
  };
}

}  // namespace emulated_gpu::operators
