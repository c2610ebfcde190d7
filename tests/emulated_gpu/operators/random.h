// SPDX-License-Identifier: Apache-2.0
//
// Random numbers of tasks. When a task runs, it draws from a CPU generator that is made from the
// seed and offset of CUDA's generator. While a graph is captured these lie in device memory, and
// each replay has others. So the same seed gives the same numbers on "cuda" twice, and get and set
// of the generator's state work; but no number equals the CPU's for that seed or a real GPU's. Any
// thread may ask for a generator; the task makes it on the stream's thread.
#pragma once
#include "operators/tasks.h"

namespace emulated_gpu::operators {

using MakeGenerator = std::function<at::Generator()>;

/// Takes the next offset of the given generator, or of the device's own one where none is given.
/// Adds the generator's memory that the task reads to the ranges.
MakeGenerator next_generator(const IValue& given, c10::DeviceIndex device, Ranges* ranges);

}  // namespace emulated_gpu::operators
